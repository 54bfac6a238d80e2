"""`bench.study`: what it refuses before anything starts, and how a study is changed."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import workbench as wb
from tests.bench import study_parts
from tests.bench.study_parts import Studied
from workbench.events import Called
from workbench.launch.study import local
from workbench.launch.study.logs import last_words
from workbench.runs.folder.alive import identity
from workbench.runs.study.record import PieceEnd, StudyRecord, TrialProposal, TrialRecord
from workbench.runs.study.tidy import KEPT, remove_weights
from workbench.runs.study.write import add_trial, claim


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[wb.Workbench]:
    with study_parts.bench(tmp_path) as made:
        yield made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the workers of each start, none of which runs."""
    starts: list[list[str]] = []

    def start(study: Path, names: list[str], devices: list[str], *, trust: bool) -> dict[str, Any]:
        starts.append(list(names))
        return {}

    monkeypatch.setattr(local, "start", start)
    return starts


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"budget": 1}, "budget=1: a study compares 2 fits or more"),
        ({"budget": "soon"}, "give a number of fits (8), or a time ('2h', '90min')"),
        ({"budget": True}, "give a number of fits"),
        ({"workers": -1}, "workers=-1: give a number of 0 or more"),
        ({"seeds": 0}, "seeds=0: give a number of 1 or more"),
        ({"limits": {"memory": 3}}, "limits has 'memory'"),
        ({"limits": {"parameters": -1}}, "give a number above 0"),
        ({"limits": {"parameters": 20}}, "its 74 parameters are more than"),
        ({"width": "8"}, "study: width='8' is a text, and 8 in the bench: give the number, 8"),
        ({"space": {"width": ["4", "16"]}}, "space: width='4' is a text, and 8 in the bench"),
        ({"name": "a b"}, "name='a b': give letters"),
        ({"monitor": "val_los"}, "Did you mean 'val_loss'?"),
        ({"monitor": "val_acc", "save_top_k": 0}, "there is no such metric"),
        ({"monitor": "train_loss"}, "give a metric of that, 'val_loss'"),
        ({"max_epochs": 0}, "its fits train nothing"),
        ({"max_epochs": -1, "max_time": "00:00:01:00"}, "its fits have no length"),
        ({"fast_dev_run": 2}, "a study compares records"),
        ({"limit_val_batches": 0}, "trials are compared by a validation"),
        ({"seeds": 1000}, "seeds=1000: give at most 100"),
        ({"n_trials": 8}, "unknown argument 'n_trials' of study(). Did you mean 'budget'?"),
        ({"compare": "lr"}, "give a list of values there"),
        ({"space": {"width": [4, 8]}, "compare": "lr"}, "compare='lr': .* give one of 'width'"),
        ({"space": {"width": [4, 8]}, "compare": "width", "budget": 3}, "give budget=4"),
        (
            {"space": {"width": [4, 8], "lr": ...}, "compare": "width", "budget": 4},
            "besides a search: give budget=5",
        ),
        (
            {"space": {"width": [4, 8]}, "compare": "width", "budget": 6, "seeds": 3},
            "each with 2 fits at least and seeds=3: give budget=10",
        ),
        ({"method": "gp"}, "method='gp' is no sampler"),
        ({"space": {"optimizer": {"sgd": {"momentumm": (0.1, 0.9)}}}}, "Did you mean 'momentum'?"),
        ({"space": {"optimizer": ["adamww", "sgd"]}}, "did you mean 'adamw'"),
        ({"space": {"lr": (1, 0.1)}}, "the lower one first"),
        ({"space": {"witdh": (1, 9)}}, "Did you mean 'width'?"),
        ({"space": {"max_epochs": [1, 2]}}, "max_epochs cannot be chosen"),
        ({"space": ["lr"], "lr": 0.1}, "lr is in the space and given for all trials too"),
        ({"colour": 3}, "unknown setting 'colour'"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    arguments: dict[str, Any], says: str, bench: wb.Workbench, started: list[list[str]]
) -> None:
    says = re.escape(says).replace(re.escape(" .* "), ".*")
    with pytest.raises((wb.SettingsError, wb.TaskError), match=says):
        bench.study(**{"space": ["lr"], **arguments})
    assert not started
    assert not [*bench.root.glob("studies/*")]


def test_a_metric_whose_name_does_not_say_what_is_better(
    tmp_path: Path, started: list[list[str]]
) -> None:
    metrics = {"quality": lambda output, y: (output.argmax(1) == y).float().mean()}
    with study_parts.bench(tmp_path, metrics=metrics) as bench:
        with pytest.raises(wb.SettingsError, match="give monitor_mode='min' or 'max'"):
            bench.study(["lr"], monitor="val_quality")
        study = bench.study(["lr"], monitor="val_quality", monitor_mode="max")
    assert (study.record.head.monitor, study.record.head.mode) == ("val_quality", "max")


class Locked(nn.Linear):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a lock")


def test_what_cannot_be_packed_is_named(tmp_path: Path, started: list[list[str]]) -> None:
    with (
        study_parts.bench(tmp_path, Locked(6, 2)) as bench,
        pytest.raises(Exception, match="model"),
    ):
        bench.study(["lr"])
    assert not [*tmp_path.glob("studies/0*")]


def test_its_record_says_what_was_asked(bench: wb.Workbench, started: list[list[str]]) -> None:
    bench.set(max_epochs=9)
    bench.fit().result()
    weights = [parameter.clone() for parameter in bench.model.parameters()]
    study = bench.study({"lr": (1e-3, 1.0)}, budget="2h", workers=3, width=16, name="wide")
    head = study.record.head
    assert study.id == "0001-wide"
    assert (head.monitor, head.mode, head.budget) == ("val_loss", "min", {"seconds": 7200.0})
    assert head.base["width"] == 16
    assert head.base["max_epochs"] == 9
    assert head.length == {"epochs": 9}
    assert len(started[0]) == 3
    assert all(
        (now == before).all() for now, before in zip(bench.model.parameters(), weights, strict=True)
    )


def test_without_workers_of_its_own_a_study_waits_for_others(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    for _ in range(2):  # the second one is the same study
        study = bench.study({"width": [4, 8]}, budget=2, workers=0, name="others")
        assert study.status == "no worker"
    with pytest.warns(UserWarning, match="no worker works on"):
        study.more(1)
    assert not started
    study.work()
    assert [len(names) for names in started] == [1]


def test_rungs_are_long_enough(tmp_path: Path, started: list[list[str]]) -> None:
    def rungs(epochs: int, budget: float = 8) -> tuple[float, ...]:
        with study_parts.bench(tmp_path, batch_size=1, max_epochs=epochs) as bench:
            return bench.study(["lr"], budget=budget).record.head.rungs

    assert rungs(30) == pytest.approx((1 / 9, 1 / 3, 1.0))  # of 1,920 updates
    assert rungs(12) == pytest.approx((1 / 3, 1.0))
    assert rungs(4) == (1.0,)
    assert rungs(30, budget=3) == (1.0,)


def test_the_same_study_goes_on_and_another_one_says_what_differs(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    first = bench.study({"lr": (1e-3, 1.0)}, name="rates")
    again = bench.study({"lr": (1e-3, 1.0)}, name="rates", budget=12)
    assert bench.studies == [again]
    assert again.id == first.id
    assert again.record.budget == {"fits": 12.0}
    with pytest.warns(UserWarning, match=r"0001-rates has another space: .* 0002-rates"):
        other = bench.study({"lr": (1e-2, 1.0)}, name="rates")
    assert other.id == "0002-rates"


def test_a_cell_that_runs_twice_says_which_study_asks_the_same(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    first = bench.study({"lr": (1e-3, 1.0)})
    go_on = rf"0001-study asks the same .* wb.Study.open\('{first.id}', .* 0002-study is a new"
    with pytest.warns(UserWarning, match=go_on):
        second = bench.study({"lr": (1e-3, 1.0)})
    assert second.id == "0002-study"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.study({"lr": (1e-2, 1.0)})  # asks something else


def test_a_choice_with_more_values_than_trials_is_said(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    space = {"lr": (1e-3, 1.0), "width": [4, 8, 16, 32]}
    few = "budget=4 has about 4 trials, .* of the 4 values of width: give fewer .* or budget=8"
    with pytest.warns(UserWarning, match=few):
        bench.study(space, budget=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="study: budget=")
        bench.study(space, budget=8)
        # brackets have nine trials each
        bench.study(space, budget=4, max_epochs=200)
        bench.study({"width": [4, 8, 16, 32]}, budget=8, compare="width")


@pytest.mark.filterwarnings("ignore:no worker works on")
def test_a_value_that_is_none_of_its_choice_is_refused_with_the_remedy(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    study = bench.study({"lr": (1e-3, 1.0), "width": [4, 16, 32]})
    with pytest.raises(wb.SettingsError, match=r"study\.space\(width=\[4, 16, 24, 32\]\)"):
        study.add(width=24)
    with pytest.raises(wb.SettingsError, match=r"width=16\.0\): give 16\."):
        study.add(width=16.0)
    study.add(width=8)  # the bench's own
    study.space(width=[4, 16, 24, 32])
    study.add(width=24, lr=3.0)  # beyond a range
    assert [change.kind for change in study.record.changes] == ["add", "space", "add"]


def test_other_data_are_another_study(tmp_path: Path, started: list[list[str]]) -> None:
    def begin(**arguments: Any) -> str:
        with study_parts.bench(tmp_path, **arguments) as bench:
            study = bench.study({"lr": (1e-3, 1.0)}, name="rates")
            bench.fit().result()  # counts, and draws from the generator of its data
            assert bench.study({"lr": (1e-3, 1.0)}, name="rates").id == study.id
            return study.id

    other = study_parts.Noisy(64)
    other.x[3, 2] += 1
    assert begin() == "0001-rates"
    assert begin() == "0001-rates"
    with pytest.warns(UserWarning, match="0001-rates has other data: .* 0002-rates"):
        assert begin(train=other) == "0002-rates"
    assert begin() == "0001-rates"


def test_another_sampler_of_the_same_class_is_another_study(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    samplers = pytest.importorskip("optuna").samplers

    def begin(**arguments: Any) -> wb.Study:
        return bench.study(["lr"], name="tpe", method=samplers.TPESampler(**arguments))

    first = begin(seed=1)
    assert begin(seed=2).id == first.id  # the study seeds it
    assert first.record.head.sampler == "TPESampler"
    with pytest.warns(UserWarning, match=r"0001-tpe has another method: .* 0002-tpe"):
        assert begin(n_startup_trials=1).id == "0002-tpe"


def test_a_budget_in_another_unit_is_refused(bench: wb.Workbench, started: list[list[str]]) -> None:
    study = bench.study(["lr"], name="rates", budget=4)
    says = "0001-rates, .* has a budget of 4 fits, and this is 2 h 00 min: give a number of fits"
    with pytest.raises(wb.SettingsError, match=says):
        bench.study(["lr"], name="rates", budget="2h")
    assert not study.record.changes


def test_the_line_of_a_study_has_its_limits_and_its_sampler(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    sampler = pytest.importorskip("optuna").samplers.TPESampler()
    lines: list[str] = []
    bench.subscribe(lambda event: lines.append(event.code) if isinstance(event, Called) else None)
    bench.study(["lr"], budget=3, limits={"parameters": 900}, method=sampler)
    assert "limits={'parameters': 900}, method=sampler)" in lines[-1]


def test_a_study_is_changed_while_it_runs(bench: wb.Workbench, started: list[list[str]]) -> None:
    study = bench.study({"lr": (1e-3, 1.0)}, budget=8)
    add_trial(study.path, TrialProposal(1, {"lr": 0.001}, "baseline"))
    study.add(lr=3e-3, width=32)
    study.stop(1)
    study.space({"lr": (1e-3, 0.3)})
    study.more(4)
    study.seeds(1, 3)
    study.repeat(1)
    study.pause()
    assert study.status == "paused"
    study.resume()
    record = study.record
    kinds = [change.kind for change in record.changes]
    assert kinds == ["add", "stop", "space", "more", "seeds", "repeat", "pause", "resume"]
    assert record.budget == {"fits": 12.0}
    assert record.space["lr"]["high"] == 0.3
    assert record.stopped == {1}
    assert len(started) > 1  # no worker lives, and work is left
    study.stop()
    assert study.status == "ended"
    with pytest.raises(wb.SettingsError, match="0001-study has ended"):
        study.pause()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda study: study.add(colour=3), "colour"),
        (lambda study: study.add(lr="fast"), "lr='fast'"),
        (lambda study: study.add(width="32"), "give the number, 32"),
        (lambda study: study.add(lr=-1.0), "lr=-1.0"),
        (lambda study: study.add(), "give its values"),
        (lambda study: study.add(3e-3), "study.add(0.003): give it by name"),
        (lambda study: study.add(max_epochs=100), "all trials of a study have one length"),
        (lambda study: study.add(seed=7), "since luck would win"),
        (lambda study: study.add(optimizer="adamww"), "adamww"),
        (lambda study: study.add(width=nn.ReLU()), "width="),
        (lambda study: study.space(width=["4", "8"]), "width='4' is a text"),
        (lambda study: study.space(optimizer=["adamww", "sgd"]), "did you mean 'adamw'"),
        (
            lambda study: study.export("a.py", trial="best"),
            "study.export(…, trial='best'): it has no trials",
        ),
        (lambda study: study.stop(9), "it has no trials yet"),
        (lambda study: study.more("1h"), "its budget is 8 fits"),
        (lambda study: study.more(0), "adds nothing"),
        (lambda study: study.space(lr=(1, 0.1)), "the lower one first"),
        (lambda study: study.work(0), "workers=0"),
    ],
)
def test_a_bad_change_is_refused(
    call: Any, says: str, bench: wb.Workbench, started: list[list[str]]
) -> None:
    study = bench.study({"lr": (1e-3, 1.0)}, budget=8)
    with pytest.raises(wb.SettingsError, match=re.escape(says)):
        call(study)
    assert not study.record.changes


def test_what_trains_nothing_is_said(bench: wb.Workbench, started: list[list[str]]) -> None:
    study = bench.study({"lr": (1e-3, 1.0)}, budget=8)
    study.stop()
    with pytest.warns(UserWarning, match=r"was ended by hand: study\.more\(1\) lets it go on"):
        study.add(lr=3e-3)
    study.more(1)
    assert study.status == "no worker"  # it goes on
    with pytest.warns(UserWarning, match=r"no worker works on 0001-study\. .*study\.work\(\)"):
        wb.Study.open(1, bench.root).add(lr=3e-3)


def test_what_is_asked_for_is_beyond_the_budget(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    study = bench.study({"lr": (1e-3, 1.0)}, budget=2)
    for number, origin in ((1, "baseline"), (2, "by hand"), (3, "repeat 1")):
        add_trial(study.path, TrialProposal(number, {"lr": 0.1 * number}, origin))
        mine = claim(study.path, number, 0, study.record.last_rung, "here")
        assert mine is not None
        mine.end(PieceEnd("completed", 1.0, value=1.0))
    assert (study.record.spent, study.record.by_hand) == (3.0, 2.0)
    assert "1.0 of 2 fits and 2.0 that you asked for" in study.headline
    assert study.status == "no worker"  # one fit is left
    study.seeds(1, 1)
    mine = claim(study.path, 1, 1, study.record.last_rung, "here")
    assert mine is not None
    mine.end(PieceEnd("completed", 1.0, value=1.0))
    assert study.record.by_hand == 3.0


def live(study: wb.Study, **note: Any) -> None:
    """Note that this process is a worker of a study."""
    workers = study.path / "workers"
    workers.mkdir(exist_ok=True)
    (workers / "here.json").write_text(json.dumps({**identity(), **note}))


def test_a_paused_study_says_so_and_without_a_worker_nothing_waits_for_it(
    bench: wb.Workbench, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    study = bench.study(["lr"], name="rates")
    study.pause()
    for change in (lambda: study.add(lr=3e-3), lambda: bench.study(["lr"], name="rates")):
        with pytest.warns(UserWarning, match=r"0001-rates is paused: study\.resume\(\)"):
            change()
    assert "It is paused.  study.resume()" in repr(study)
    with pytest.raises(RuntimeError, match=r"no worker .* 0001-rates is paused: study\.resume"):
        study.result(timeout=60)
    add_trial(study.path, TrialProposal(1, {}, "baseline"))
    claim(study.path, 1, 0, 0, "gone")
    assert [row["status"] for row in study.table()] == ["interrupted"]
    live(study)
    assert [row["status"] for row in study.table()] == ["trains"]
    with pytest.raises(TimeoutError):
        study.result(timeout=1)
    assert capsys.readouterr().err.count("is paused: study.resume()") == 1


def test_a_study_whose_workers_are_queued_waits_for_them(
    bench: wb.Workbench, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    study = bench.study(["lr"], workers=0)
    for follower, seconds in ((study, 0.1), (wb.Study.open(1, bench.root), 1.2)):
        with pytest.raises(TimeoutError):
            follower.result(timeout=seconds)
        assert capsys.readouterr().err.count("0001-study waits for its first worker") == 1
    live(study, ended="SIGTERM has come")
    with pytest.raises(RuntimeError, match="no worker works on 0001-study"):
        study.result(timeout=60)


def test_a_log_that_no_worker_has_written_is_left_out(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    study = bench.study(["lr"])
    logs = study.path / "logs"
    logs.mkdir()
    (logs / "mine-1.log").write_text("no space left")
    (logs / "\x1b[2J all is well.log").write_text("trust me")
    assert last_words(study.path) == ("mine-1", "no space left")


class Penalized(nn.Module):
    """A loss with a weight of its own, which knows the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.scale * nn.functional.cross_entropy(output, target)


def test_what_no_script_can_hold_is_said_at_once(tmp_path: Path, started: list[list[str]]) -> None:
    model = nn.Linear(6, 2)
    with study_parts.bench(tmp_path, model, loss=Penalized(model)) as bench:
        text = repr(bench.study(["lr"]))
    assert "writes this bench's runs as headless scripts" in text
    assert "the loss has parameters of its own and shares others with the model" in text


def test_what_is_compared_stays_a_choice(bench: wb.Workbench, started: list[list[str]]) -> None:
    study = bench.study({"width": [4, 8]}, compare="width", budget=4)
    with pytest.raises(wb.SettingsError, match=r"give a list, width=\[…\]"):
        study.space(width=(4, 64))
    study.space(width=[4, 8, 16])
    assert [row["width"] for row in study.compared] == [4, 8, 16]


def test_without_a_worker_nothing_waits_forever(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    study = bench.study(["lr"])
    with pytest.raises(RuntimeError, match=r"no worker works on 0001-study.*study\.work\(\)"):
        study.result()
    with pytest.raises(FileNotFoundError, match="Near it: 0001-study"):
        wb.Study.open("7", bench.root)
    assert wb.Study.open("study", bench.root).id == study.id


def test_an_error_of_the_code_is_its_result(bench: wb.Workbench, started: list[list[str]]) -> None:
    study = bench.study(["lr"])
    for number in (1, 2):
        add_trial(study.path, TrialProposal(number, {}, "by hand"))
        mine = claim(study.path, number, 0, 0, "here")
        assert mine is not None
        mine.end(PieceEnd("failed", 0.0, cause="KeyError: no such table"))
    assert study.status == "ended"
    with pytest.raises(RuntimeError, match="no such table"):
        study.result()


def test_a_best_value_of_zero_and_the_rate_that_was_found_are_shown(
    bench: wb.Workbench, started: list[list[str]]
) -> None:
    study = bench.study({"lr": "relative"}, budget=3)
    add_trial(study.path, TrialProposal(1, {"lr": {"times_found": 0.7}}, "by hand"))
    mine = claim(study.path, 1, 0, study.record.last_rung, "here")
    assert mine is not None
    mine.end(PieceEnd("completed", 1.0, value=0.0, values={"lr": 0.0021}))
    lines: list[str] = []
    study.stop()
    study.follow(lines.append)
    assert "best 0 (trial 1)" in study.headline
    assert study.table()[0]["lr"] == study.settings["lr"] == 0.0021
    assert "lr=2.1e-3" in lines[0]
    assert "times_found" not in repr(study)
    add_trial(study.path, TrialProposal(2, {"lr": {"times_found": 1.5}}, "even"))
    claim(study.path, 2, 0, study.record.last_rung, "here")
    assert repr(study.best) == "trial 1 (lr=2.1e-3): value 0, seeds: 0"
    head, first, second = repr(study.table()).splitlines()
    assert head.split()[:3] == ["trial", "from", "lr"]
    assert first.split() == "1 by hand 0.0021 0 whole completed 0 1".split()
    assert second.split() == "2 whole space 1.5× 0 whole interrupted".split()
    # a record may come from a stranger
    assert "\x1b" not in repr(TrialRecord(3, {"act": "\x1b[2J"}, "even"))


def test_weights_of_all_but_the_best_go_at_the_end(tmp_path: Path) -> None:
    with study_parts.bench(tmp_path, max_epochs=1) as bench:
        study = Studied(bench, {"lr": (1e-3, 1.0)})
        rates = (0.0011, 0.3, 0.2, 0.1, 0.4, 0.5, 0.0012)
        ends = [study.train(n, {"lr": rate}) for n, rate in enumerate(rates, 1)]
        other = bench.fit().result()
    remove_weights(StudyRecord.read(study.path))
    best = sorted(ends, key=lambda end: end.value or 9.0)
    assert all(study.run(end).checkpoints for end in best[:KEPT])
    assert not any(study.run(end).checkpoints for end in best[KEPT:])
    assert all(len(study.run(end).history["loss"]) for end in ends)
    assert other.checkpoints


def test_the_best_of_each_value_that_is_compared_keeps_its_weights(tmp_path: Path) -> None:
    with study_parts.bench(tmp_path, max_epochs=1) as bench:
        study = Studied(bench, {"width": [4, 8], "lr": (1e-4, 1.0)}, compare="width")
        for number in range(1, KEPT + 2):
            study.train(number, {"width": 8, "lr": 0.02 * number})
        worst = study.train(KEPT + 2, {"width": 4, "lr": 1e-4})
    record = StudyRecord.read(study.path)
    values = [record.whole(trial) or 0.0 for trial in record.trials]
    assert max(values) == worst.value
    remove_weights(record)
    ends = [trial.pieces[0].end for trial in record.trials]
    kept = [end is not None and bool(study.run(end).checkpoints) for end in ends]
    assert kept.count(False) == 1
    assert kept[-1]


def test_weights_that_more_budget_continues_stay(tmp_path: Path) -> None:
    with study_parts.bench(tmp_path, max_epochs=3) as bench:
        study = Studied(bench, {"lr": (1e-3, 1.0)}, rungs=(1 / 3, 1.0))
        ends = [study.train(n, {"lr": 0.05 * n}) for n in range(1, KEPT + 3)]
    best = sorted(ends, key=lambda end: end.value or 9.0)
    mine = claim(study.path, 1 + ends.index(best[-1]), 1, 1, "here")
    assert mine is not None
    mine.give_back()  # a worker continues this trial, too
    remove_weights(StudyRecord.read(study.path))
    kept = [*best[:KEPT], best[-1]]
    assert [bool(study.run(end).checkpoints) for end in ends] == [end in kept for end in ends]
