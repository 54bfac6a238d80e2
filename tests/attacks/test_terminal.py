"""A terminal obeys control characters: none of a record reaches it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import workbench as wb
from tests.attacks.strangers import bench
from workbench.cli import main
from workbench.events import Logged, Message, RunEnded, RunStarted, Trial, Validated
from workbench.runs.printable import printable
from workbench.runs.store import RunFolder

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\r\x9b31m\u202e"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> None:
    assert not OBEYED.search(text), text


def poisoned(root: Path, *, end: bool = True, kind: str = "fit", id: str = "0001-fit") -> Path:
    evil = {f"acc{CLEAR}": 1.0, "nan": math.nan, "time": 1.0}
    header = {
        "kind": kind,
        "host": f"host{TITLE}",
        "launched": True,
        "task": {"model": f"Net{TITLE}", "parameters": 8},
    }
    with RunFolder.create(root, id, header) as folder:
        folder.append(
            RunStarted(
                f"0001{TITLE}", kind, {"lr": 0.1, "monitor": f"m{CLEAR}"}, f"cpu{TITLE}", updates=4
            )
        )
        folder.append(Message(f"warned{TITLE}\nand again", "warning"))
        folder.append(Validated(1, 0, evil))
        folder.append(Logged(1, 0, evil))
        folder.append(Trial(4, False, error=f"too large{TITLE}"))
        folder.append(Message(f"Traceback{CLEAR}\n  line", "error"))
        if end:
            folder.append(
                RunEnded(
                    "failed", 2, 0.1, error=f"ValueError: bad{TITLE}\nsecond line", metrics=evil
                )
            )
    return folder.path


def test_control_characters_are_written_out_and_text_stays() -> None:
    assert printable(f"a{TITLE}b") == "a\\x1b]0;owned\\x07b"
    assert printable("größe 数 🙂 1\u202f000", lines=True) == "größe 数 🙂 1\u202f000"
    assert printable("a\n\tb") == "a\\n\\tb"
    assert printable("a\n\tb\r", lines=True) == "a\n\tb\\r"
    clean(printable("".join(map(chr, range(0x3000)))))
    printable("\udc80").encode()  # half a sign cannot be printed at all


@pytest.mark.parametrize("arguments", [
    ["list"], ["list", "--json"], ["show", "1"], ["show", "1", "--json"], ["show", "9"], ["show", f"x{TITLE}"], ["export", "1"], ["compare", "1", "2"],
    ["compare", "1", "2", "--json"], ["delete", "9"], ["delete", "1"], ["prune", "--keep", "0", "--dry-run"],
])  # fmt: skip
def test_the_command_line_prints_no_control_characters(
    tmp_path: Path, arguments: list[str]
) -> None:
    poisoned(tmp_path)
    poisoned(tmp_path, id="0002-fit")
    (tmp_path / "runs" / f"x{TITLE}").mkdir()
    (tmp_path / "runs" / f"x{TITLE}" / "run.json").write_text(json.dumps({"kind": "fit"}))
    done = CliRunner().invoke(main, ["runs", *arguments, "--root", str(tmp_path)])
    assert done.output
    assert isinstance(done.exception, SystemExit | None)
    clean(done.output)


def test_a_running_record_of_somebody_else(tmp_path: Path) -> None:
    poisoned(tmp_path, end=False)
    told = CliRunner().invoke(main, ["runs", "list", "--root", str(tmp_path)]).output
    done = CliRunner().invoke(main, ["runs", "delete", "0001-fit", "--root", str(tmp_path)])
    assert "may still run" in done.stderr
    clean(told + done.output)


@pytest.mark.parametrize("kind", ["fit", "find_lr", "find_batch_size"])
def test_what_is_attached_prints_and_raises_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = poisoned(tmp_path, kind=kind)
    (path / "output.log").write_text(f"line{TITLE}\n")
    job = wb.attach("0001-fit", tmp_path)
    with pytest.raises(Exception) as caught:
        job.result(60)
    clean(f"{caught.value}{caught.value.__cause__}")
    clean(str(caught.value))
    out = capsys.readouterr()
    # a progress bar moves by itself
    clean(out.out.replace("\r", "").replace("\x1b[A", "") + out.err.replace("\r", ""))


def test_no_repr_of_what_was_read_has_any(tmp_path: Path) -> None:
    poisoned(tmp_path)
    b = bench(tmp_path)
    run = b.fit().result()
    for shown in (b.runs, b.compare("0001-fit", run.id), [*b.runs[0].health]):
        clean(repr(shown).replace("\n", ""))
        clean(str(shown).replace("\n", ""))
    from workbench.tuners.batch_size.batch_size_finder import BatchSizes
    from workbench.tuners.learning_rate.lr_finder import LRCurve

    for made in (BatchSizes.from_events(b.runs[0].events), LRCurve.from_events(b.runs[0].events)):
        clean(repr(made))


def test_an_unreadable_reason_in_a_checkpoint(tmp_path: Path) -> None:
    b = bench(tmp_path)
    run = b.fit().result()
    point = run.checkpoints[-1]
    info: dict[str, Any] = json.loads((point.path / "info.json").read_text())
    (point.path / "info.json").write_text(
        json.dumps({**info, "resumable": False, "why": f"because{TITLE}"})
    )
    with pytest.raises(wb.SettingsError) as caught:
        b.fit(start=run.id, max_epochs=2)
    clean(str(caught.value))
