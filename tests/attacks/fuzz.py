"""Gives each reader of a run's folder files that were changed at random, under a limit of time and memory.

    python -m tests.attacks.fuzz 600       (seconds, then a seed if it should repeat; prints a table)

Each input is read in a child process of its own. What counts is the reader's CPU time, since a machine may be busy, and the
largest memory beyond that at the start.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.attacks import poison
from tests.attacks.poison import HOSTILE
from workbench.engine.checkpoint import files, lightning_file
from workbench.engine.checkpoint.files import UnreadableError
from workbench.events import StepsDone
from workbench.events.columns import pack
from workbench.events.serialization import to_line
from workbench.launch.attached import attached_job
from workbench.runs import read
from workbench.runs.checkpoints import list_checkpoints
from workbench.runs.evidence import evidence
from workbench.runs.folder import control, ids
from workbench.runs.folder.annotations import read_annotations
from workbench.runs.folder.delete import marked_by, prune
from workbench.runs.record.follow import Tail
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief
from workbench.runs.tables.compare import compare
from workbench.runs.tables.report import record_data, text_lines
from workbench.runs.tables.run_list import RunList
from workbench.server.canvas import RunCanvas
from workbench.server.details import Details, output
from workbench.server.errors import NotFoundError
from workbench.server.query import Query
from workbench.server.watcher import Watcher
from workbench.settings import file as settings_file
from workbench.task.errors import TaskError
from workbench.ui.page import write_run

SECONDS, MEMORY = 2.0, 500 << 20
_PATIENCE = 300.0
"""Seconds after which one of the readers hangs, on a machine that may be busy."""
OURS = (ValueError, OSError, TaskError, NotFoundError, UnreadableError)
RUN, OTHER = "0001-fit", "0002-fit"


class _Model:
    """The model of the run, for readers that need one; made once."""

    @staticmethod
    @functools.cache
    def made() -> torch.nn.Module:
        return poison.plain_net()


def _show(root: Path) -> None:
    for _ in text_lines(record_data(root / "runs" / RUN)):
        pass


def _history(root: Path) -> None:
    run = Run.open(root / "runs" / RUN)
    for look in (
        lambda: run.history, lambda: run.validation, lambda: run.logged, lambda: run.health, lambda: run.settings, lambda: run.charts(),
        lambda: repr(run), lambda: run._repr_html_(), lambda: run.time_spent, lambda: run.events[-1],
    ):  # fmt: skip
        with contextlib.suppress(*OURS, IndexError):
            look()
    tables = [table for table in (run.history, run.validation, run.logged) if table]
    # writing more takes a time that its size explains
    if sum(map(len, tables)) * sum(len(table["step"]) for table in tables) < 200_000:
        run.to_csv(io.StringIO())


def _compare(root: Path) -> None:
    both = compare(Run.open(root / "runs" / RUN), Run.open(root / "runs" / OTHER))
    repr(both)
    both._repr_html_()
    both.chart()


def _list(root: Path) -> None:
    repr(RunList.of(root))
    assert OTHER in {run.id for run in read.list_runs(root)}
    prune(root, "fit", 50)


@contextlib.contextmanager
def _watched(root: Path) -> Iterator[Watcher]:
    watcher = Watcher(root.parent, 1, [str(root)])
    try:
        yield watcher
    finally:
        watcher.close()


def _watcher(root: Path) -> None:
    """The other run of the root is listed, whatever this one holds."""
    with _watched(root) as watcher:
        until = time.monotonic() + _PATIENCE
        while (page := watcher.page(Query()))["reading"] and time.monotonic() < until:
            json.dumps(page)
        assert OTHER in {row["run"] for row in page["rows"]}
        done = watcher.listen(lambda message: None)
        done()


def _details(root: Path) -> None:
    with _watched(root) as watcher:
        key = watcher.page(Query())["roots"][0]["key"]
        entry = watcher.find(key, RUN)
        json.dumps(Details().of(entry, watcher.row(entry)))
        json.dumps([output(entry, -1), output(entry, 0)])
        canvas = RunCanvas(entry)
        canvas.everything()
        for _ in range(200):
            canvas.frame()
            if canvas.over:
                break


def _follow(root: Path) -> None:
    tail = Tail(root / "runs" / RUN)
    while tail.new():
        pass
    RunBrief.read(root / "runs" / RUN)


def _folder(root: Path) -> None:
    run = root / "runs" / RUN
    read_annotations(run)
    marked_by(run)
    for _ in range(3):
        list(control.take(run))
    attached_job._last_lines(run)
    ids.new_id(root, "fit")
    with contextlib.suppress(*OURS):
        evidence(Run.open(root / "runs" / OTHER), root)


def _weights(root: Path) -> None:
    for point in list_checkpoints(root / "runs" / RUN)[-1:]:
        with contextlib.suppress(*OURS, RuntimeError):
            files.load_weights(_Model.made(), point.path / "model.safetensors")
        files.read_weights(point.path / "model.safetensors")


def _state(root: Path) -> None:
    for point in list_checkpoints(root / "runs" / RUN)[-1:]:
        with contextlib.suppress(*OURS, RuntimeError):
            files.peek(point.path, "settings", "validation_due")
        files.read_state(point.path)


def _ckpt(root: Path) -> None:
    path = root / "runs" / RUN / "x.ckpt"
    if path.exists():
        lightning_file.read(path)


def _yaml(root: Path) -> None:
    settings_file.read(root / "runs" / RUN / "settings.yaml")


def _page(root: Path) -> None:
    run = Run.open(root / "runs" / RUN)
    for sample in run.samples:
        with contextlib.suppress(*OURS):
            sample.items  # read here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of events that cannot be drawn
        write_run(root / "page.html", run)


READERS: dict[str, Callable[[Path], None]] = {
    "list": _list, "show": _show, "history, csv": _history, "compare": _compare, "follow": _follow, "watcher": _watcher, "details, canvas": _details,
    "folder": _folder, "weights": _weights, "state": _state, "Lightning's file": _ckpt, "settings file": _yaml, "page": _page,
}  # fmt: skip
_OF_LIBRARIES = {"weights", "state"}
"""Readers that say with a RuntimeError of ours which file cannot be read."""


def source(folder: Path) -> Path:
    """A root with two runs, of which the first is changed; all files that a stranger may write are in it."""
    good = poison.good(folder / "root")
    root = good.parent.parent
    poison.another(good, OTHER)
    if good.name != RUN:
        good.rename(good.with_name(RUN))
    run = root / "runs" / RUN
    (run / "annotations.json").write_text(
        '{"name": "a", "notes": "b", "tags": ["c"], "pinned": true}'
    )
    (run / "output.log").write_text("epoch 1\repoch 2\nend\n" * 50)
    (run / "deleted-next").write_text(f"{OTHER}\n")
    (run / "control").mkdir(exist_ok=True)
    for number in range(3):
        (run / "control" / f"{number}.json").write_text('{"type": "Change", "values": {"lr": 0.1}}')
    (run / "settings.yaml").write_text("lr: 0.1\nmax_epochs: 3\nlaunch: {config_file: x}\n")
    torch.save(
        {"state_dict": {"a": torch.ones(3)}, "epoch": 1, "global_step": 2, "loops": {}},
        run / "x.ckpt",
    )
    return root


# -- what is changed

_TOKENS = [
    b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u0100", b",", b"\0", b"\n", b"\r", b"\xff", b"NaN", b"-Infinity", b"1e999", b"9" * 400, b"null", b"=", b"eyJ-",
    b"PK\5\6", b"PK\1\2", b"\x80\x02", b"}", b"]", b"AAAA", b"<script>", b"&a [*a,*a]", b"- - - ", b"\xf0\x9f\x98\x80", b"A" * 4096,
]  # fmt: skip


def _places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        yield from _places(item, (*here, key))


def _hostile(rng: random.Random) -> Any:
    grown = [
        "a" * 100_000,
        "eyJ-" * 20_000,
        [[]] * 50_000,
        {str(n): n for n in range(20_000)},
        -(2**53),
        2**53,
        "=1+1",
        list(range(10_000)),
    ]
    return rng.choice([*HOSTILE, *grown, rng.random(), rng.randrange(1 << 20)])


def _json(rng: random.Random, data: bytes) -> bytes:
    """Change values of one line of JSON, by their structure."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    with contextlib.suppress(ValueError):
        value = json.loads(lines[at] if len(lines) > 3 else data)
        for _ in range(rng.randint(1, 3)):
            place = rng.choice([*_places(value)])
            inner = value
            for key in place[:-1]:
                inner = inner[key]
            if place:
                with contextlib.suppress(TypeError, KeyError, IndexError):
                    inner[place[-1]] = _hostile(rng)
        text = json.dumps(value, separators=(",", ":")).encode()
        return b"\n".join([*lines[:at], text, *lines[at + 1 :]]) if len(lines) > 3 else text
    return data


def _bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, remove, repeat or insert bytes."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice([1, 4, 100, 5000]))
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes(rng.randrange(256) for _ in range(end - at)) + data[end:]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return (
                data[:at]
                + data[at:end] * min(rng.choice([2, 50, 2000]), 1 + 400_000 // max(1, end - at))
                + data[end:]
            )
        case 3:
            return data[:at] + rng.choice(_TOKENS) * rng.choice([1, 10, 1000, 100_000]) + data[at:]
        case 4:
            return data[:at]
        case _:
            number = struct.pack(
                rng.choice(["<I", "<Q"]), rng.choice([0, 1, 1 << 20, 1 << 31, (1 << 32) - 1])
            )
            return data[:at] + number + data[at + len(number) :]


def change(rng: random.Random, run: Path) -> str:
    """Change one or two files of a run; returns a description."""
    said = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        paths = [
            path for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".reserve"
        ]
        favoured = [path for path in paths if path.name in ("metrics.jsonl", "run.json")] * 5
        path = rng.choice([*paths, *favoured])
        if path.stat().st_size > 1 << 24:  # it has a hole already
            continue
        data = path.read_bytes()
        how = rng.choice([_json, _json, _bytes, _bytes, "sparse", "lines"])
        if how == "sparse":
            place = rng.choice(["before", "after"])
            with path.open("r+b") as file:
                size = 1 << rng.randint(28, 40)
                if place == "before":
                    file.truncate(0)
                    file.seek(size)
                    file.write(data)
                else:
                    file.truncate(size)
            said.append(f"{path.name}: a hole {place}")
            continue
        if how == "lines":
            lines = data.splitlines(keepends=True) or [b"\n"]
            line = rng.choice([*lines, b"{}\n", b"\n", b"~\n"])
            # An event takes some 0.1 ms of the readers that judge a run, however it came into its record: 2 s are 10,000 events and more.
            data += line * (5000 if b"type" in line else 500_000)
            name = "lines"
        else:
            data, name = how(rng, data)[: 1 << 23], how.__name__
        path.unlink()
        path.write_bytes(data)
        said.append(f"{path.name}: {name}")
    return ", ".join(said)


# -- what has cost much once


def _append(run: Path, *lines: bytes) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.writelines(lines)


def _flush(step: int, rows: int, columns: dict[str, bytes], **more: Any) -> bytes:
    return to_line(StepsDone(step, 1, rows, 0, 1.0, columns, **more)).encode() + b"\n"


def _sparse(run: Path, name: str, size: int = 1 << 40) -> None:
    with (run / name).open("r+b") as file:
        file.truncate(size)


def _sparse_lines(run: Path) -> None:
    with (run / "metrics.jsonl").open("r+b") as file:
        for number in range(1, 2000):
            file.seek(number * (60 << 20))
            file.write(b'}\n{"type":')


def _point(run: Path) -> Path:
    return list_checkpoints(run)[-1].path


def _bomb(run: Path) -> None:
    """A state whose pickle is packed, and 300 MB unpacked."""
    with zipfile.ZipFile(_point(run) / "state.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", b"\x80\x02" + b"]" * (300 << 20) + b".")
        packed.writestr("archive/version", b"3\n")


def _shared(run: Path) -> None:
    """Lists within lists, each there twice: 2^60 of them for who walks through."""
    state = torch.load(_point(run) / "state.pt", weights_only=True)
    one: Any = [1]
    for _ in range(60):
        one = [one, one]
    torch.save({**state, "held": {"a": one}}, _point(run) / "state.pt")


def _expanded(run: Path) -> None:
    state = torch.load(_point(run) / "state.pt", weights_only=True)
    data = torch.zeros(1, dtype=torch.int64).expand(1 << 33)
    torch.save(
        {**state, "held": {"a": {"__workbench__": "integers", "data": data, "tuple": False}}},
        _point(run) / "state.pt",
    )


def _many_containers(run: Path) -> None:
    with zipfile.ZipFile(_point(run) / "state.pt", "w") as packed:
        packed.writestr("archive/data.pkl", b"\x80\x02" + b"(" + b"}" * (20 << 20) + b"l.")
        packed.writestr("archive/version", b"3\n")


def _many_tensors(run: Path) -> None:
    header = (
        "{"
        + ",".join(
            f'"{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for n in range(300_000)
        )
        + "}"
    ).encode()
    (_point(run) / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def _huge_tensor(run: Path) -> None:
    size = 1 << 40
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = _point(run) / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a record of 1 TB without room": lambda run: _sparse(run, "metrics.jsonl"),
    "lines of 60 MB without room": _sparse_lines,
    "a line of 64 MB of {}": lambda run: _append(run, b"[" + b"{}," * (1 << 24) + b"{}]\n"),
    "a line of 32 MB of {} in an event": lambda run: _append(
        run, b'{"type":"RunStarted","request":{"a":[' + b"{}," * (1 << 23) + b"{}]}}\n"
    ),
    "2 million lines of {}": lambda run: _append(run, b"{}\n" * 2_000_000),
    "2 million empty lines": lambda run: _append(run, b"\n" * 2_000_000),
    "one wide sign in a text of 30 MB": lambda run: _append(
        run, b'{"type":"StepsDone","columns":{"a":"' + b"A" * (30 << 20) + b'\\ud83d\\ude00"}}\n'
    ),
    "10,000 starts": lambda run: _append(
        run, *((run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:1] * 10_000)
    ),
    "a text of 60 MB": lambda run: _append(
        run, b'{"type":"Message","text":"' + b"a" * (60 << 20) + b'"}\n'
    ),
    "rows of nothing": lambda run: _append(
        run, *(_flush(n * 60_000, 60_000, {}) for n in range(2000))
    ),
    "thousands of names": lambda run: _append(
        run,
        *(
            _flush(n * 256, 256, {"loss": pack([1.0] * 256), f"a{n}": pack([1.0] * 256)})
            for n in range(200)
        ),
    ),
    "names in validations": lambda run: _append(
        run,
        *(
            json.dumps(
                {"type": "Validated", "step": n, "epoch": 0, "metrics": {f"m{n}": 1.0}}
            ).encode()
            + b"\n"
            for n in range(5000)
        ),
    ),
    "a million layers": lambda run: _append(
        run, *(_flush(n, 1, {"loss": pack([1.0]), "layer_norms": bytes(4 << 20)}) for n in range(2))
    ),
    "one of 60,000 rows has layers": lambda run: _append(
        run,
        _flush(
            60_000,
            60_000,
            {"loss": bytes(240_000), "layer_norms": bytes(4 << 20)},
            layers_every=1 << 17,
        ),
    ),
    "deep JSON": lambda run: _append(run, b'{"type":' * 1_000_000 + b"\n"),
    "a monitor of 80,000 signs": lambda run: poison.edit_header(
        run, settings={"monitor": "eyJ-" * 20_000}
    ),
    "a header of a million values": lambda run: poison.edit_header(
        run, settings={"launch": {"a": [{}] * 1_000_000}}
    ),
    "a header of 1 TB without room": lambda run: _sparse(run, "run.json"),
    "annotations of 1 TB without room": lambda run: _sparse(run, "annotations.json"),
    "an output of 1 TB without room": lambda run: _sparse(run, "output.log"),
    "numbers of 1 TB without room": lambda run: _sparse(run.parent, ".given"),
    "a mark of 1 TB without room": lambda run: _sparse(run, "deleted-next"),
    "10,000 commands": lambda run: (
        [(run / "control" / f"{n}.json").write_text("{}") for n in range(10_000)] and None
    ),
    "an info of 1 TB without room": lambda run: _sparse(_point(run), "info.json"),
    "weights of 1 TB without room": lambda run: _sparse(_point(run), "model.safetensors"),
    "a tensor of 1 TB without room": _huge_tensor,
    "300,000 tensors": _many_tensors,
    "a state of 1 TB without room": lambda run: _sparse(_point(run), "state.pt"),
    "a packed state": _bomb,
    "20 million dicts in a state": _many_containers,
    "lists that are shared": _shared,
    "a tensor that is one number": _expanded,
    "deep YAML": lambda run: (run / "settings.yaml").write_text("[" * 100_000) and None,
    "a .ckpt of 1 TB without room": lambda run: _sparse(run, "x.ckpt"),
}
"""Changes to a run's folder, by what they are."""


# -- under a limit


def _memory(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) << 10


def _measure(name: str, root: Path) -> tuple[str, float, int, str]:
    Path("/proc/self/clear_refs").write_text("5")
    before, began, why = _memory("VmRSS"), time.process_time(), ""
    try:
        READERS[name](root)
    except OURS:
        pass
    except Exception as error:
        if not (
            name in _OF_LIBRARIES and type(error) is RuntimeError and "cannot be read" in str(error)
        ):
            why = f"{type(error).__name__}: {error}"[:300]
    return name, time.process_time() - began, max(0, _memory("VmHWM") - before), why


def read_all(root: Path) -> dict[str, tuple[float, int, str]]:
    """What each reader takes for this root: CPU seconds, bytes, and how it failed; in a child process."""
    out, into = os.pipe()
    # else a collection in the child would copy the memory that it shares with this process
    gc.freeze()
    child = os.fork()
    if child == 0:
        os.close(out)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        warnings.simplefilter("ignore")
        try:
            with os.fdopen(into, "wb") as pipe:
                for name in READERS:
                    pickle.dump(("", name), pipe)
                    pipe.flush()
                    pickle.dump(_measure(name, root), pipe)
                    pipe.flush()
        finally:
            os._exit(0)
    os.close(into)
    late = threading.Timer(_PATIENCE, os.kill, (child, signal.SIGKILL))
    late.start()
    found: dict[str, tuple[float, int, str]] = {}
    with os.fdopen(out, "rb") as pipe:
        while True:
            try:
                name, *rest = pickle.load(pipe)
            except EOFError:
                break
            found[name or rest[0]] = tuple(rest) if name else (_PATIENCE, 0, "it did not end")  # type: ignore[assignment]
    late.cancel()
    os.waitpid(child, 0)
    return found


def failures(found: dict[str, tuple[float, int, str]]) -> list[str]:
    """What was beyond a limit, or failed with an error that is not ours."""
    said = [f"{name}: {why}" for name, (_, _, why) in found.items() if why]
    said += [
        f"{name}: {seconds:.1f} s" for name, (seconds, _, _) in found.items() if seconds > SECONDS
    ]
    return said + [
        f"{name}: {size >> 20} MB" for name, (_, size, _) in found.items() if size > MEMORY
    ]


def copied(root: Path, folder: Path) -> Path:
    """A copy of a root."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root, folder)
    return folder


def _made_elsewhere(folder: Path) -> Path:
    """Make the source in a process of its own: this one is forked often, and must have no other threads."""
    child = os.fork()
    if child == 0:
        source(folder)
        os._exit(0)
    os.waitpid(child, 0)
    return folder / "root"


def main(seconds: float, seed: int) -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        root = _made_elsewhere(Path(made))
        worst: dict[str, list[Any]] = defaultdict(lambda: [0, 0.0, 0, 0])
        seen: Counter[str] = Counter()
        began, number = time.monotonic(), 0
        inputs = iter(random.Random(seed).sample([*SPECIAL.items()], len(SPECIAL)))
        while time.monotonic() - began < seconds:
            name, special = ("", None) if number % 3 else next(inputs, ("", None))
            number, seed = number + 1, seed + 1
            there = copied(root, Path(made) / "changed")
            said = (
                (name, special(there / "runs" / RUN))[0]
                if special
                else change(random.Random(seed), there / "runs" / RUN)
            )
            found = read_all(there)
            for reader, (took, size, _) in found.items():
                one = worst[reader]
                one[0], one[1], one[2] = one[0] + 1, max(one[1], took), max(one[2], size)
            for failure in failures(found):
                worst[failure.partition(":")[0]][3] += 1
                seen[failure] += 1
                print(f"{seed} {said}: {failure}", flush=True)
        print("\n| reader | inputs | worst time | worst memory | failures |\n|---|---|---|---|---|")
        for reader, (inputs_read, took, size, failed) in worst.items():
            print(f"| {reader} | {inputs_read} | {took:.2f} s | {size / 1e6:.0f} MB | {failed} |")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())))
