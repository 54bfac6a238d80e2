"""Processes train a study together: no piece twice, and none is lost with its process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests import warm
from tests.bench import study_parts
from tests.launch.launched import gone, kernel
from tests.waiting import wait_for
from workbench.launch.study.liveness import Attempt, Observer, why_hopeless
from workbench.launch.study.worker import Attend, Piece, Trainer, Worker, plan_now
from workbench.runs.folder.alive import liveness
from workbench.runs.read import list_runs, trial_place
from workbench.runs.study.find import study_folders
from workbench.runs.study.record import (
    Change,
    PieceEnd,
    PieceRecord,
    StudyRecord,
    TrialProposal,
)
from workbench.runs.study.write import Claim, add_trial, change, claim, take_over
from workbench.tuners.study.plan import Train

SPACE = {"lr": (1e-3, 1.0), "width": [4, 8, 16]}
LONG = 40


def training(study: wb.Study, begun: int = 1) -> list[PieceRecord]:
    """The pieces that a living process trains, in at least so many updates."""
    root = study.path.parents[1]
    steps = {run.id: run.step for run in list_runs(root)}
    return [
        piece
        for trial in study.record.trials
        for piece in trial.pieces
        if piece.state == "claimed"
        and liveness(piece.claim) == "alive"
        and steps.get(piece.run, 0) >= begun
    ]


KERNEL = """
import sys, time
from pathlib import Path
from tests.bench import study_parts

bench = study_parts.bench(Path(sys.argv[1]), max_epochs=20)
study = bench.study({"lr": (1e-3, 1.0), "width": [4, 8, 16]}, budget=2)
print(study.id, flush=True)
time.sleep(1000)
"""
"""A process that makes a study."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[wb.Workbench, wb.Study]]:
    """A study that three workers have trained, of which one was killed and one was told to end."""
    root = tmp_path_factory.mktemp("study")
    with study_parts.bench(root, max_epochs=LONG, checkpoint_every=4) as bench:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(warm.python().executable))
            study = bench.study(SPACE, budget=3.4, workers=3)  # whole fits
        wait_for(lambda: training(study, 9))
        os.kill(training(study, 9)[0].claim["pid"], signal.SIGKILL)
        wait_for(lambda: training(study, 9))
        os.kill(training(study, 9)[0].claim["pid"], signal.SIGTERM)
        study.result(timeout=300)
        yield bench, study


def test_a_study_ends_with_the_values_of_its_bench(
    ended: tuple[wb.Workbench, wb.Study],
) -> None:
    bench, study = ended
    record = study.record
    assert study.status == "ended"
    assert not record.problems
    assert record.trials[0].origin == "baseline"
    for trial in record.trials[:2]:
        end = trial.end(record.last_rung)
        assert end is not None
        assert end.status == "completed"
        fitted = bench.fit(**trial.values, seed=0).result()
        assert end.value == fitted.metrics["val_loss"]
        run = wb.Run.open(study.path.parents[1] / "runs" / end.run)
        assert list(run.history["loss"]) == list(fitted.history["loss"])
    assert study.value == min(record.whole(trial) or 9.0 for trial in record.trials)
    assert study.result().metrics["val_loss"] == study.value


def test_a_piece_is_taken_over_and_never_trained_twice(
    ended: tuple[wb.Workbench, wb.Study],
) -> None:
    _, study = ended
    pieces = [(trial, piece) for trial in study.record.trials for piece in trial.pieces]
    taken_over = sum(piece.generation - 1 for _, piece in pieces)
    assert taken_over in (1, 2)  # the worker that was told to end may have been at its end
    runs = [run for run in list_runs(study.path.parents[1]) if run.kind == "fit"]
    places = Counter(place[:4] for run in runs if (place := trial_place(run.header)) is not None)
    for trial, piece in pieces:
        assert places[study.id, trial.number, piece.seed, piece.rung] == piece.generation
        assert piece.end is not None
        assert piece.end.cost == 1  # what was trained twice counts once
    continued = [wb.Run.open(run.path) for run in runs if trial_place(run.header)]
    assert sum(bool(run.resumes) for run in continued) == taken_over


@pytest.mark.usefixtures("forked_ranks")
def test_a_study_outlives_the_kernel_that_made_it(tmp_path: Path) -> None:
    with kernel(KERNEL, str(tmp_path)) as made:
        wait_for(lambda: [*study_folders(tmp_path)])
        study = wb.Study.open(1, tmp_path)
        wait_for(lambda: training(study))
    assert gone(made.pid)
    assert study.status == "running"
    run = study.result(timeout=300)
    with study_parts.bench(tmp_path, max_epochs=20) as bench:
        for trial in study.record.trials:
            fitted = bench.fit(**trial.values, seed=0).result()
            assert study.record.whole(trial) == fitted.metrics["val_loss"]
    assert run.metrics["val_loss"] == study.value
    assert len(study.record.workers) == 1
    assert all(note["ended"] for note in study.record.workers.values())


def test_a_worker_that_was_told_to_end_has_exited_well(
    ended: tuple[wb.Workbench, wb.Study],
) -> None:
    _, study = ended
    codes = sorted(process.wait() for process in study._processes.values())
    assert codes == [-signal.SIGKILL, 0, 0]


def test_another_process_reads_the_study(ended: tuple[wb.Workbench, wb.Study]) -> None:
    bench, study = ended
    opened = wb.Study.open(study.id, bench.root)
    assert opened.settings == study.settings
    bench.set(**opened.settings)
    assert {row["trial"] for row in opened.table()} == {
        trial.number for trial in study.record.trials
    }
    assert [run.id for run in opened.runs] == [row["run"] for row in opened.table()]
    assert study.id in repr(opened)
    assert "val_loss" in repr(opened)


def test_a_worker_elsewhere_is_dead_when_its_beats_stand_still(
    study: wb.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("workbench.launch.study.liveness.time.monotonic", lambda: now)
    add_trial(study.path, TrialProposal(1, {}, "baseline"))
    mine = claim(study.path, 1, 0, 0, "elsewhere")
    assert mine is not None
    file = study.path / "trials" / "0001" / "s0r0g1.claim"
    file.write_text(file.read_text().replace('"host": "', '"host": "other'))
    observer = Observer()

    def dead() -> bool:
        return bool([*observer.abandoned(StudyRecord.read(study.path))])

    assert not dead()
    now = 149.0
    mine.beat("0001-fit")
    assert not dead()
    now = 290.0
    assert not dead()
    now = 300.0
    assert dead()
    piece = StudyRecord.read(study.path).trials[0].pieces[0]
    taken = [take_over(study.path, 1, piece, name) for name in ("a", "b")]
    assert isinstance(taken[0], Claim)
    assert taken[1] is None
    assert not mine.is_current()


@pytest.fixture
def study(tmp_path: Path) -> wb.Study:
    """A study on which nobody works."""
    with study_parts.bench(tmp_path) as bench, pytest.MonkeyPatch.context() as patched:
        patched.setattr("workbench.launch.study.local.start", lambda *_, **__: {})
        return bench.study(SPACE, budget=3)


@pytest.fixture
def worker(study: wb.Study, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    """Makes a worker of the study in this process: `worker(train).run("cpu")`. Without `prepare`
    the searches have run.
    """
    monkeypatch.setattr("workbench.launch.signals.ask_to_stop", lambda *_: None)

    def make(
        train: Trainer,
        prepare: Callable[[StudyRecord, Attend], None] | None = None,
        tell: Callable[[str], object] = lambda text: None,
        name: str = "",
        **propose: Callable[[StudyRecord, TrialProposal], TrialProposal],
    ) -> Worker:
        if prepare is None:
            change(study.path, Change("priors", {"priors": {}, "spent": 0.0}))
        return Worker(study.path, train, prepare or (lambda *_: None), tell, name, **propose)

    return make


def test_take_overs_without_progress_end() -> None:
    died = Attempt("0001-fit", 0, 7, given_back=False)
    assert not why_hopeless([died] * 3)
    assert "4 workers have ended" in why_hopeless([died] * 4)
    assert "after 7 updates" in why_hopeless([died] * 4)
    further = [Attempt("0001-fit", 0, updates, given_back=False) for updates in range(1, 9)]
    assert not why_hopeless(further)
    assert not why_hopeless([Attempt("", 0, 0, given_back=True)] * 9)
    assert not why_hopeless([Attempt("", 0, 0, given_back=False)] * 8)


@pytest.mark.usefixtures("forked_ranks")
def test_a_study_of_another_version_is_refused(study: wb.Study) -> None:
    head = study.path / "study.json"
    head.write_text(head.read_text().replace('"torch": "', '"torch": "1.'))
    study.work()
    with pytest.raises(RuntimeError, match="its trials would not compare"):
        study.result(timeout=200)
    assert "its trials would not compare" in repr(wb.Study.open(study.path))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raise ImportError('it is broken')", "exit code 1.*ImportError: it is broken"),
        ("import os; os.kill(os.getpid(), 9)", "Killed: .* where memory is short"),
    ],
)
def test_a_worker_that_dies_at_its_start_says_why(
    module: str, words: str, study: wb.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "numpy.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    study.work()
    with pytest.raises(RuntimeError, match=f"(?s)no worker works on 0001-study.*{words}"):
        study.result(timeout=200)
    for view in (study, wb.Study.open(study.path)):
        text = repr(view)
        assert "No worker works on it." in text
        assert "study.work()" in text
        assert "ImportError" in text or "has printed nothing" in text


class Endless:
    """A job that ends when it is told to."""

    id = ""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()


class Interrupted:
    """A trainer during whose first piece a user ends the study, or stops the trial."""

    def __init__(self, asked: Change) -> None:
        self.asked = asked

    def __call__(self, record: StudyRecord, piece: Piece, attend: Attend) -> PieceEnd:
        change(record.path, self.asked)
        why = attend(Endless())  # type: ignore[arg-type]
        return PieceEnd("stopped", 0.4, cause=why)

    def is_worn(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        (Change("end"), "open"),
        (Change("stop", {"trial": 1}), "ended"),
    ],
)
def test_a_piece_that_the_end_of_its_study_cuts_is_given_back(
    asked: Change,
    state: str,
    study: wb.Study,
    worker: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = Interrupted(asked)
    if asked.kind == "stop":
        monkeypatch.setattr(train, "is_worn", lambda: True)
    worker(train).run("cpu")
    assert study.record.trials[0].pieces[0].state == state
    assert study.record.spent == 0.4
    assert state == "ended" or study.status == "ended"
    study.more(2)
    action = plan_now(study.record)
    goes_on = isinstance(action, Train) and action.trial == 1
    assert goes_on == (state == "open")


def test_a_piece_that_cannot_be_taken_over_stops_no_worker(
    study: wb.Study, worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_trial(study.path, TrialProposal(1, {}, "baseline"))
    assert claim(study.path, 1, 0, 0, "dead") is not None
    file = study.path / "trials" / "0001" / "s0r0g1.claim"
    file.write_text(file.read_text().replace('"pid_started": ', '"pid_started": 1'))
    monkeypatch.setattr("workbench.launch.study.worker.take_over", lambda *_: None)
    train = Wears()
    worker(train).run("cpu")
    assert train.trained == [2]


def _elsewhere(file: Path) -> None:
    """Let the process that a file names be on another machine."""
    file.write_text(file.read_text().replace('"host": "', '"host": "other'))


class Leaves:
    """A trainer during each of whose pieces a user ends the study."""

    def __init__(self) -> None:
        self.trained: list[int] = []

    def __call__(self, record: StudyRecord, piece: Piece, attend: Attend) -> PieceEnd:
        self.trained.append(piece.trial)
        change(record.path, Change("end"))
        return PieceEnd("completed", 1.0, value=1.0)

    def is_worn(self) -> bool:
        return False


def test_a_change_that_comes_as_the_last_worker_leaves_is_heard(
    study: wb.Study, worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Leaves()

    def leave(record: StudyRecord) -> None:
        if len(train.trained) == 1:  # after the worker has read that the study has ended
            change(record.path, Change("more", {"fits": 1.0}))

    monkeypatch.setattr("workbench.launch.study.worker.remove_weights", leave)
    worker(train, name="here").run("cpu")
    assert train.trained == [1, 2]
    assert study.record.workers["here"]["ended"]


def test_an_ended_study_is_not_searched_and_searches_stop_with_it(
    study: wb.Study, worker: Callable[..., Worker]
) -> None:
    whys: list[str] = []

    def prepare(record: StudyRecord, attend: Attend) -> None:
        change(record.path, Change("end"))
        whys.append(attend(Endless()))  # type: ignore[arg-type]

    for _ in range(2):
        assert worker(Wears(), prepare).run("cpu") == "it was ended by hand"
    assert whys == ["the study has ended: it was ended by hand"]


def test_searches_of_another_machine_are_waited_for_until_it_is_dead(
    study: wb.Study, worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:

    def broken(record: StudyRecord, attend: Attend) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker(Wears(), broken, name="there").run("cpu")
    note = study.path / "workers" / "there.json"
    note.write_text(note.read_text().replace("KeyboardInterrupt", ""))
    _elsewhere(note)
    assert wb.Study.open(study.path).status == "running"
    now = 0.0

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            now += 100.0
            return False

    def prepare(record: StudyRecord, attend: Attend) -> None:
        change(record.path, Change("priors", {"priors": {}, "spent": 0.0}))

    monkeypatch.setattr("workbench.launch.study.liveness.time.monotonic", lambda: now)
    train = Wears()
    waits = worker(train, prepare)
    monkeypatch.setattr(waits, "_wake", Waits())
    waits.run("cpu")
    assert now == 200.0
    assert train.trained == [1]


class Wears:
    """A trainer after whose first piece another process should go on."""

    def __init__(self) -> None:
        self.trained: list[int] = []

    def __call__(self, record: StudyRecord, piece: Piece, attend: Attend) -> PieceEnd:
        self.trained.append(piece.trial)
        return PieceEnd("completed", 1.0, value=1.0)

    def is_worn(self) -> bool:
        return True


class Instant:
    """A trainer whose pieces end at once."""

    def __call__(self, record: StudyRecord, piece: Piece, attend: Attend) -> PieceEnd:
        return PieceEnd("completed", 1.0, 0.1 * piece.trial)

    def is_worn(self) -> bool:
        return False


def test_a_sampler_that_fails_leaves_the_planned_trial_and_says_so(
    study: wb.Study, worker: Callable[..., Worker]
) -> None:
    def broken(record: StudyRecord, planned: TrialProposal) -> TrialProposal:
        if planned.number < 2:
            return planned
        raise ValueError(f"no covariance\x1b[2J {'of all ' * 1000}")

    lines: list[str] = []
    worker(Instant(), tell=lines.append, propose=broken).run("cpu")
    first, *others = study.record.trials
    assert len(others) == 2
    assert "has failed" not in first.why
    for trial in others:
        assert "method= has failed, ValueError: no covariance" in trial.why
        assert "\x1b" not in trial.why
        assert "test_workers.py" in trial.why
        assert any(line.startswith(f"trial {trial.number}: method= has failed") for line in lines)


def test_a_worn_worker_leaves_its_place_to_another(
    study: wb.Study, worker: Callable[..., Worker]
) -> None:
    train, told = Wears(), list[str]()
    worn = worker(train, tell=told.append, name="here")
    assert worn.run("cpu") == ""
    assert not study.record.workers["here"]["ended"]
    assert worn.worn
    assert train.trained == [1]
    assert study.status != "ended"
