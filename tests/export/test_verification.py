"""A script runs for its first updates: what reading the code cannot find shows in its losses."""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import warm
from tests.export.export_running import execute, make_bench
from tests.export.source import test_order
from workbench.events import Message
from workbench.export.verification import child, verify

nbclient = importlib.import_module("nbclient")
nbformat = importlib.import_module("nbformat")

START = """\
import functools, json, os, sys, time, warnings
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
import workbench as wb

sys.executable = {python!r}
Path("cfg.py").write_text("scale = 0.5")
told = {{}}"""
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 3)
    def forward(self, x):
        return self.body(x * scale)
torch.manual_seed(0)
scale = 1.0
x, y = torch.randn(40, 8), torch.randint(0, 3, (40,))
train = (x, y)"""
FIT = """\
bench = wb.Workbench(
    Net(), train=train, loss=F.cross_entropy, batch_size=8, max_epochs=1, accelerator="cpu"
)
bench.fit().result()
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    bench.export({script!r}, verify=True)
bench.close()
told[{name!r}] = [str(one.message) for one in found]"""

NOISY = """\
class Noisy(Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return x[index] + torch.randn(8, generator=self.generator), y[index]
train = Noisy()"""
LOADER = """\
generator = torch.Generator().manual_seed(1)
train = DataLoader(TensorDataset(x, y), 8, shuffle=True, generator=generator)"""
VOCABULARY = """\
words = list({f"word{number}" for number in range(200)})
places = {word: place for place, word in enumerate(words)}
x = torch.tensor([places[f"word{number}"] for number in range(200)]).reshape(25, 8) / 100
train = (x, y[:25])"""
CACHED = """\
gain = 0.5
@functools.lru_cache
def gained():
    return gain
class Net(Net):
    def forward(self, x):
        return self.body(x * gained())"""
NAMELESS = """\
class Net(Net):
    def forward(self, x):
        return self.body(x * eval("factor"))"""

SCALED = """\
class Net(Net):
    def forward(self, x):
        return super().forward(x * gain)"""
ALIKE: dict[str, list[str]] = {"a value that is set anew": ["gain = 1.0", "gain = 0.5", SCALED]}
"""A notebook that its script repeats."""
BATCHES, MODEL = "first batches are others", "model or loss computes in another way"
QUICK = {
    "globals": (["globals().update({'scale': 0.5})"], MODEL),
    "an item of globals": (["gain = 1.0", "globals()['gain'] = 0.5", SCALED], MODEL),
    "%env": (["%env SCALE=0.5", "scale = float(os.environ.get('SCALE', '1'))"], MODEL),
    "a sample": ([NOISY, "train[0];"], BATCHES),
    "a name": (
        ["factor = 2.0", NAMELESS],
        "it fails: NameError: name 'factor' is not defined (a_name.py, line ",
    ),
}
SLOW = {
    "exec": (["exec(open('cfg.py').read())"], MODEL),
    "%run": (["%run cfg.py"], MODEL),
    "a batch": ([LOADER, "xb, yb = next(iter(train))", "xb.shape"], BATCHES),
    "a set": ([VOCABULARY], BATCHES),
    "the clock": (
        [
            "seed = int(time.time())\ntorch.manual_seed(seed)",
            "x = torch.randn(40, 8)\ntrain = (x, y)",
            "time.sleep(1)",
        ],
        BATCHES,
    ),
    "lru_cache": ([CACHED, "gained();", "gain = 1.0"], MODEL),
}


def notebook(folder: Path, cases: dict[str, Sequence[str]]) -> dict[str, list[str]]:
    """What the exports of a notebook warn of: each case is its cells, a fit and an export."""
    cells = [START.format(python=str(warm.python().executable))]
    for name, code in cases.items():
        script = f"{name.strip('%').replace(' ', '_')}.py"
        cells += [NET, *code, FIT.format(name=name, script=script)]
    cells.append("print(json.dumps(['TOLD', told]))")
    code_cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    ran = nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=code_cells),
        kernel_name="python3",
        timeout=280,
        startup_timeout=280,
        resources={"metadata": {"path": str(folder)}},
    ).execute()  # fmt: skip
    told = "".join(output.get("text", "") for output in ran.cells[-1].outputs)
    found: dict[str, list[str]] = json.loads(told)[1]
    return found


@pytest.fixture(scope="module")
def kernels() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(warm.kernels()))
        yield


@pytest.fixture(scope="module")
def quick(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    cases = ALIKE | {name: cells for name, (cells, _) in QUICK.items()}
    return notebook(tmp_path_factory.mktemp("quick"), cases)


@pytest.fixture(scope="module")
def slow(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return notebook(
        tmp_path_factory.mktemp("slow"), {name: cells for name, (cells, _) in SLOW.items()}
    )


def test_a_script_that_repeats_the_run_has_no_warning(quick: dict[str, list[str]]) -> None:
    assert quick["a value that is set anew"] == []


@pytest.mark.parametrize("name", QUICK)
def test_what_reading_the_code_misses_is_measured(name: str, quick: dict[str, list[str]]) -> None:
    assert QUICK[name][1] in quick[name][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_that_reading_the_code_misses(name: str, slow: dict[str, list[str]]) -> None:
    assert SLOW[name][1] in slow[name][0]


# -- in this process


LOSSES = {0: 1.0, 1: 0.5, 2: float("nan"), 3: 0.25}
VALIDATIONS = {4: {"val_loss": 0.75, "val_accuracy": float("nan")}}
ROWS = [{"step": step, "loss": loss, "lr": 0.1} for step, loss in LOSSES.items()]


def test_rows_are_compared_to_the_last_bit() -> None:
    rows = [*ROWS, {"step": 4, "val_loss": 0.75, "val_accuracy": 0.5}]
    assert verify.compare(rows, LOSSES, VALIDATIONS, 0.0) == (None, 4, 1)
    rows[1] = {"step": 1, "loss": 0.5000001, "lr": 0.1}
    assert (
        verify.compare(rows, LOSSES, VALIDATIONS, 0.0)[0]
        == "at update 2 its loss is 0.5000001, and the run's 0.5"
    )
    assert verify.compare(rows, LOSSES, VALIDATIONS, 1e-3) == (None, 4, 1)
    rows[-1] = {"step": 4, "val_loss": 1.5}
    assert (
        verify.compare(rows[2:], LOSSES, VALIDATIONS, 0.0)[0]
        == "in the validation after update 4 its val_loss is 1.5, and the run's 0.75"
    )


def test_updates_that_the_run_did_not_record_are_not_compared() -> None:
    assert verify.compare(ROWS, {0: 1.0, 3: 0.25}, {}, 0.0) == (None, 2, 0)


@pytest.mark.parametrize(("code", "end"), [("0", "ended"), ("1", "error"), ("'no'", "error")])
def test_a_script_may_exit(
    code: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, object]] = []
    monkeypatch.setattr(child, "end_group", lambda outcome, description: told.append(description))
    monkeypatch.setattr(child, "watch", lambda plan, outcome: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "train.py"
    monkeypatch.setattr(sys, "argv", ["child.py", "{}", "", str(script)])
    script.write_text(f"import sys\nsys.exit({code})\n")
    child.main({"ranks": 1}, "", str(script))
    assert end in told[0]


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert child.rows_of(str(log)) == []
    log.write_text('{"step": 0, "loss": 1.0}\n{"step": 1, "lo')
    assert child.rows_of(str(log)) == [{"step": 0, "loss": 1.0}]


def test_the_script_gets_the_environment_of_the_start_and_no_launchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SET_SINCE", "1")
    monkeypatch.setattr(
        verify.Path,
        "read_bytes",
        lambda path: b"PATH=/bin\0RANK=0\0LOCAL_RANK=0\0ACCELERATE_USE_CPU=1\0NAME=a=b\0",
    )
    assert verify.started_with() == {"PATH": "/bin", "NAME": "a=b"}

    def refused(path: Path) -> bytes:
        raise OSError

    monkeypatch.setattr(verify.Path, "read_bytes", refused)
    assert verify.started_with()["SET_SINCE"] == "1"


DATA = "model, train=(x, y), loss=F.cross_entropy, batch_size=20, max_epochs=1"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a script, with one of temporary files. Python is forked, with torch, and a slow machine has its time."""
    monkeypatch.setattr(verify, "Plan", functools.partial(verify.Plan, until_validation=60.0))
    # For verify alone: a loader's worker has a socket among the temporary files, whose path must be short.
    python = str(warm.python().executable)
    monkeypatch.setattr(verify, "sys", SimpleNamespace(executable=python))
    # so the script's other process is forked, too
    started_with = verify.started_with
    monkeypatch.setattr(verify, "started_with", lambda: started_with() | {"PYTHON_EXEC": python})
    (tmp_path / "temporary").mkdir()
    made = functools.partial(tempfile.TemporaryDirectory, dir=tmp_path / "temporary")
    monkeypatch.setattr(verify, "tempfile", SimpleNamespace(TemporaryDirectory=made))
    return tmp_path


def test_the_bench_says_what_was_verified(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DATA.replace(
        "batch_size=20, max_epochs=1", "batch_size=50, max_epochs=3, log_every_n_steps=2"
    )
    bench = make_bench(here, f"{data}, val=(x[:20], y[:20]), num_workers=1")
    run = bench.fit().result()
    heard: list[object] = []
    bench.subscribe(heard.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        script = bench.export(here / "train.py", verify=True)
        book = bench.export(here / "train.ipynb", run, verify=True)
    bench.close()
    said = [
        f"{path}: verified: 3 updates and a validation repeat the run" for path in (script, book)
    ]
    assert capsys.readouterr().out.splitlines() == said
    assert [event.text for event in heard if isinstance(event, Message)] == said
    assert not [*(here / "temporary").glob("workbench-verify-*")]
    assert {path.name for path in here.iterdir() if path.name.startswith("train")} == {
        "train.py", "train.start.safetensors", "train.ipynb", "train.ipynb.start.safetensors",
    }  # fmt: skip


def test_a_headless_script_is_verified_by_the_run_that_it_records(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = make_bench(here, f"{DATA}, val=(x[:20], y[:20])")
    bench.fit().result()
    script = bench.export(here / "train.py", format="workbench", verify=True)
    said = f"{script}: verified: 5 updates and a validation repeat the run"
    assert capsys.readouterr().out.splitlines() == [said]
    assert not [*(here / "temporary").glob("workbench-verify-*")]
    bench.close()


def test_a_script_of_two_processes_is_verified_on_two(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = make_bench(here, f"{DATA}, val=(x[:20], y[:20]), devices=2, accelerator='cpu'")
    bench.fit().result()
    script = bench.export(here / "train.py", verify=True)
    bench.close()
    said = f"{script}: verified: 3 updates and a validation repeat the run"
    assert capsys.readouterr().out.splitlines() == [said]
    assert not [*(here / "temporary").glob("workbench-verify-*")]


def test_a_headless_script_says_what_it_begins_with(here: Path) -> None:
    bench = make_bench(here, DATA, before="torch.seed()\nx = torch.randn(100, 8)")
    bench.fit().result()
    with pytest.warns(UserWarning, match="at update 1 its loss is .* Its first batches are others"):
        bench.export(here / "train.py", format="workbench", verify=True)
    bench.close()


def test_a_file_that_it_reads_is_found_in_the_working_directory(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    (here / "data").mkdir()
    bench = make_bench(
        here, DATA, before="torch.save((x, y), 'data/x.pt')\nx, y = torch.load('data/x.pt')"
    )
    bench.fit().result()
    script = bench.export(here / "train.py", verify=True)
    said = (
        f"{script}: verified: 3 updates repeat the run where it finds data, as in {here}: "
        "start the script in that folder"
    )
    assert capsys.readouterr().out.splitlines() == [said]
    (here / "data" / "x.pt").unlink()
    with pytest.warns(
        UserWarning,
        match=r"`x, y = torch.load\('data/x.pt'\)`\): it reads data/x.pt, which is neither beside",
    ):
        bench.export(here / "train.py", verify=True)
    bench.close()


def test_what_an_earlier_call_left_in_the_model_is_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    grows = "def train(b):\n    b.model.scale += 1.0\n    return b.fit().result()\n"
    names = execute(
        here / "user.py",
        f"{test_order.START}{test_order.MADE}{grows}train(bench)\nrun = train(bench)\n",
    )
    with pytest.warns(UserWarning, match="Its model is set up in another way"):
        names["bench"].export(here / "train.py", format="workbench", verify=True)
    names["bench"].close()


STATE = """
calls, seen = 0, []


def counted(output, y):
    global calls
    calls += 1
    return F.cross_entropy(output, y) * calls


def listing(output, y):
    seen.append(1)
    return F.cross_entropy(output, y) * len(seen)


class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(3)

    def forward(self, output, y):
        self.seen[0] += 1
        return F.cross_entropy(output, y) * self.seen[0].item()

"""
USED = {
    "a count, by a fit": ("loss=counted", "fit", {}, ""),
    "a tensor, by a test": ("loss=Bank()", "test", {}, ""),
    "a list, by a search": (
        "loss=listing",
        "find_lr",
        {"num_training": 20},
        "at update 1 its loss",
    ),
}
"""What earlier jobs change: a fit begins with the first values of the first two."""


@pytest.mark.parametrize("name", USED)
def test_what_earlier_jobs_left_is_measured(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss, kind, given, told = USED[name]
    arguments = f"Net(), train=(x, y), test=(x, y), {loss}, max_epochs=1, batch_size=20"
    with make_bench(here, arguments, STATE) as bench:
        getattr(bench, kind)(**given).result()
        bench.fit().result()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bench.export(here / "train.py", verify=True)
    assert [told in str(warning.message) for warning in caught] == [True] * bool(told)
    assert ("verified: 3 updates repeat the run" in capsys.readouterr().out) is not bool(told)


def test_a_script_that_takes_too_long_is_ended(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    bench = make_bench(
        here,
        DATA,
        before=(
            "import os, time\nif not os.path.exists('user.py'):\n    time.sleep(600)\n    x = None"
        ),
    )
    bench.fit().result()
    monkeypatch.setattr(verify, "Plan", functools.partial(verify.Plan, until_first=0.5))
    bench.export(here / "train.py", verify=True)
    bench.close()
    assert (
        "not verified: it made no update in 0.5 s; verify=False leaves this out"
        in capsys.readouterr().out
    )
    assert not [*(here / "temporary").glob("workbench-verify-*")]
