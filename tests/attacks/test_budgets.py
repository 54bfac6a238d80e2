"""Records, checkpoints and other files that claim any size, or grow in memory: what can be read is read, and the rest is left out."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import count
from tests.runs.records import read_events, write_run
from workbench.engine.checkpoint import files, lightning_file
from workbench.events import Event, Message, RunStarted, StepsDone, pack, to_line
from workbench.runs.read import list_runs, summary
from workbench.runs.record.event_log import Recorded
from workbench.runs.record.follow import Tail
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief
from workbench.task.errors import TaskError


def lines(*events: Event) -> bytes:
    return b"".join(to_line(event).encode() + b"\n" for event in events)


def flush(step: int, rows: int = 1, **more: object) -> StepsDone:
    return StepsDone(step, 1, rows, 0, 1.0, {"loss": pack(range(step, step + rows))}, **more)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with three updates that goes on, beside another run."""
    write_run(tmp_path, "0002-fit", created=2.0)
    path = write_run(tmp_path, "0001-fit", created=1.0, over=False)
    add(path, lines(*map(flush, range(3))))
    return path


def add(run: Path, data: bytes) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(data)


def losses(run: Path) -> list[float]:
    return Run.open(run).history["loss"].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "data",
    [lines(RunStarted("0001-fit", "fit", {"lr": 0.5}, "cpu")) * 2000, b"{}\n" * 500_000, b"\n" * 500_000, b"[" + b"{}," * (8 << 20) + b"{}]\n", b'{"type":"Message","text":"' + b"a" * (20 << 20) + b'"}\n',
     b'"type"\n' * 100_000, None],
    ids=["starts", "lines of {}", "empty lines", "a line of 24 MB", "a text of 20 MB", "lines of a type", "1 TB of a hole"],
)  # fmt: skip
def test_what_is_no_event_ends_the_reading_and_the_other_runs_are_listed(
    run: Path, data: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    if data is None:
        os.truncate(run / "metrics.jsonl", 1 << 40)
    else:
        add(run, data)
    assert [one.id for one in list_runs(run.parents[1])] == ["0001-fit", "0002-fit"]
    assert losses(run) == [0, 1, 2]
    assert RunBrief.read(run).step == 3
    assert [event.step for event in read_events(run) if isinstance(event, StepsDone)] == [0, 1, 2]
    told = [one.getMessage() for one in caplog.records if "read in part" in one.getMessage()]
    assert len(told) == 1
    assert str(run) in told[0]


def test_a_long_record_is_read_whole_whatever_lies_between_its_events(run: Path) -> None:
    """As a newer version, or a disk that was full again and again, may leave it."""
    add(
        run,
        b"".join(
            lines(flush(step)) + b'{"type":"OfTomorrow","a":[1,2,3]}\n~\n'
            for step in range(3, 15_000)
        ),
    )
    assert losses(run) == [*range(15_000)]
    tail, steps = Tail(run), 0
    while events := tail.new():
        steps += sum(isinstance(event, StepsDone) for event in events)
    assert (steps, tail.skipped) == (15_000, 2 * 14_997)


def test_events_are_read_backwards_as_forwards(run: Path) -> None:
    add(
        run,
        b"".join(lines(flush(step)) + b"~\n" * (step % 3) for step in range(3, 2000))
        + b'{"type":"Mess',
    )
    for over in (True, False):
        events = Recorded(run, over)
        assert [*reversed([*events.stream()])] == [*reversed(Recorded(run, over))]
        assert events[-1] == flush(1999)


def test_a_flush_of_thousands_of_layers_is_read_however_long_its_line_is(run: Path) -> None:
    norms = np.arange(256 * 8000, dtype=np.float32)
    event = StepsDone(
        3,
        1,
        256,
        0,
        1.0,
        {
            "loss": pack([1.0] * 256),
            "layer_norms": pack(norms),
            "pr\u00e9cision": pack([2.0] * 256),
        },
    )
    add(run, lines(event, Message("the end")))
    assert len(lines(event)) > 1 << 23
    assert read_events(run)[-2:] == [event, Message("the end")]
    assert Run.open(run).history["pr\u00e9cision"][-1] == 2.0
    assert summary(run).status == "running"


@pytest.mark.parametrize("sign", [r"\u0100", "\u0100", r"\ud83d\ude00"])
def test_one_wide_sign_in_a_long_line_is_no_flush(run: Path, sign: str) -> None:
    """All its other signs would become four bytes wide."""
    text = to_line(StepsDone(3, 1, 2 << 20, 0, 1.0, {"loss": bytes(8 << 20)}))
    add(run, text.replace("AAAAAAAA", sign + "AAAA", 1).encode() + b"\n")
    assert losses(run) == [0, 1, 2]


def test_thousands_of_names_and_layers_do_not_make_a_table_of_gigabytes(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(3, 3 + 256 * 500, 256):
        add(
            run,
            lines(
                StepsDone(
                    step,
                    1,
                    256,
                    0,
                    1.0,
                    {
                        "loss": pack([1.0] * 256),
                        f"a{step}": pack([1.0] * 256),
                        "acc": pack([1.0] * 256),
                    },
                )
            ),
        )
    add(
        run,
        lines(
            StepsDone(600_000, 1, 1, 0, 1.0, {"loss": pack([1.0]), "layer_norms": bytes(4 << 18)})
        ),
    )
    found = Run.open(run).history
    assert len(found["loss"]) == len(found["acc"]) == 3 + 256 * 500 + 1
    assert sum(array.nbytes for array in found.values()) < 100e6
    assert [one for one in caplog.records if "left out" in one.getMessage()]
    assert [one for one in caplog.records if "leaves out grad_norm" in one.getMessage()]
    assert Run.open(run).charts()


def test_a_setting_that_is_a_book_is_as_if_it_were_not_recorded(run: Path) -> None:
    add(run, lines(RunStarted("0001-fit", "fit", {"monitor": "eyJ-" * 20_000, "lr": 0.5}, "cpu")))
    started = read_events(run)[-1]
    assert isinstance(started, RunStarted)
    assert started.settings == {"lr": 0.5}


# -- weights and state


@pytest.fixture
def point(tmp_path: Path) -> Path:
    """The folder of a checkpoint of one layer."""
    path = tmp_path / "0001-fit" / "checkpoints" / "00000004"
    path.parents[1].mkdir()
    files.write(
        path.parent, path.name, nn.Linear(2, 2).state_dict(), {"step": 4, "held": {}}, {"step": 4}
    )
    return path


def test_weights_of_any_size_are_refused_by_name(point: Path) -> None:
    weights = point / "model.safetensors"
    good = weights.read_bytes()
    size = 1 << 43
    header = json.dumps(
        {"weight": {"dtype": "F32", "shape": [2, size // 8], "data_offsets": [0, size]}}
    ).encode()
    weights.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(weights, 8 + len(header) + size)
    with pytest.raises(RuntimeError, match=rf"{weights}.*another model: 'weight' has shape"):
        files.load_weights(nn.Linear(2, 2), weights)
    with pytest.raises(RuntimeError, match=rf"{weights} cannot be read .*GB.* of memory are free"):
        files.read_state(point)
    for wrong in (struct.pack("<Q", 1 << 40) + good[8:], b"", good[:40]):
        weights.write_bytes(wrong)
        with pytest.raises(RuntimeError, match=rf"{weights} cannot be read"):
            files.read_weights(weights)


@pytest.mark.parametrize("removed", [7, "weight", {"weight": 1}, [["weight"]], None])
def test_names_of_weights_that_are_none_are_ignored(point: Path, removed: object) -> None:
    info = json.loads((point / "info.json").read_text())
    (point / "info.json").write_text(json.dumps({**info, "removed": removed}))
    model, weights = nn.Linear(2, 2), files.read_weights(point / "model.safetensors")
    files.load_weights(model, point / "model.safetensors")
    assert torch.equal(model.weight, weights["weight"])


def test_a_state_that_grows_in_memory_is_refused_by_name(point: Path) -> None:
    path = point / "state.pt"
    whole = path.read_bytes()

    def refused(why: str) -> None:
        with pytest.raises(RuntimeError, match=rf"{path} cannot be read \(.*{why}"):
            files.read_state(point)

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", b"\x80\x02" + b"]" * (1 << 20) + b".")
    refused("packed more tightly")
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("archive/data.pkl", b"\x80\x02(" + b"}" * (3 << 20) + b"l.")
    refused("more containers")
    one: list[object] = [1]
    for _ in range(60):
        one = [one, one]
    torch.save({"held": {"a": one}}, path)
    refused("repeats a few values")
    wide = torch.zeros(1, dtype=torch.int64).expand(1 << 40)
    torch.save({"held": {"a": {"__workbench__": "integers", "data": wide, "tuple": False}}}, path)
    refused("repeats a few values")
    path.write_bytes(whole)
    os.truncate(path, 1 << 40)
    refused("torch.save has not written it")
    path.write_bytes(whole)
    assert files.read_state(point)["step"] == 4
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"step": 4}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert files.read_state(point)["step"] == 4


def test_a_file_of_lightning_that_grows_in_memory_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", b"\x80\x02" + b"]" * (1 << 20) + b".")
    with pytest.raises(TaskError, match=r"x\.ckpt.*packed more tightly"):
        lightning_file.read(path)


# -- at random


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.timeout(1200)
def test_no_reader_takes_long_or_much_memory_whatever_is_changed() -> None:
    """2 s and 500 MB for each reader and input; ten minutes of inputs under `make soak`, or as WORKBENCH_FUZZ says."""
    seconds = os.environ.get("WORKBENCH_FUZZ", str(count(8, 600)))
    seed = [] if float(seconds) > 60 else ["1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks.fuzz", seconds, *seed],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
