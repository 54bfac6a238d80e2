"""The two searches on the canvas and in the header: what is kept, what is said, what a click means in code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ui.canvas.test_widget import Screen, started
from tests.ui.fakes import FakeBench, FakeJob, decays, flush, recipes, sizes, speeds, sweep, tuning
from tests.ui.test_panel import answer, asked, said, use
from tests.waiting import wait_for
from workbench.events import (
    Event,
    RunEnded,
    RunStarted,
    SearchEnded,
    SettingsSet,
    TimeSpent,
    Trial,
    TrialStarted,
)
from workbench.settings import Settings
from workbench.ui.canvas.searches.sweeps import EARLIER_POINTS, POINTS
from workbench.ui.canvas.transport.messages import LIMIT
from workbench.ui.panel import Panel


def swept(number: int, optimizer: int = 0, shift: float = 1.0) -> list[Event]:
    job = FakeJob(f"{number:04d}-find_lr", "find_lr", Settings.make(), lambda job: iter(()))
    return list(sweep(job, optimizer, shift))


def searched(keep: bool = False) -> list[Event]:
    return list(
        sizes(
            FakeJob(
                "0001-find_batch_size", "find_batch_size", Settings.make(), lambda job: iter(())
            ),
            keep,
        )
    )


def test_the_last_two_curves_lie_behind_and_a_late_view_sees_them() -> None:
    screen = Screen()
    for number, shift in enumerate((0.1, 0.5, 1.0, 2.0)):
        screen.draw(*swept(number, shift=shift))
    screen.settle()
    state, earlier = screen.mirrors[0].state, screen.mirrors[0].rows("earlier")
    assert state["earlier_curves"] == [
        {"run": "0001", "suggestion": 2.35e-3},
        {"run": "0002", "suggestion": 4.7e-3},
    ]
    assert state["swept"]["run"] == "0003"
    assert set(earlier[:, 0]) == {0, 1}
    low = [earlier[earlier[:, 0] == which][:, 1:] for which in (0, 1)]
    lowest = [line[np.argmin(line[:, 1]), 0] for line in low]
    assert lowest[1] / lowest[0] == pytest.approx(2, rel=0.5), (
        "each is the smoothed line of its own sweep"
    )
    before = dict(state)
    screen.mirrors.append(type(screen.mirrors[0])())
    screen.view._heard(screen.view, {"type": "ready"}, [])
    late = screen.mirrors[1]
    assert late.state == before
    np.testing.assert_array_equal(late.rows("earlier"), earlier)


def test_the_race_is_drawn_beside_its_curve_alone() -> None:
    screen = Screen()
    raced = sweep(
        FakeJob("0001-find_lr", "find_lr", Settings.make(), lambda job: iter(())), race=True
    )
    screen.draw(*raced)
    screen.settle()
    state = screen.mirrors[0].state
    assert state["raced"] == [
        {"lr": 4.7e-3, "loss": 0.5}, {"lr": 1.9e-3, "loss": 0.9}, {"lr": 1.2e-2, "loss": None}, {"lr": 3e-3, "loss": 0.6},
    ]  # fmt: skip
    screen.draw(*swept(2))
    screen.settle()
    assert screen.mirrors[0].state["raced"] == []


def test_a_tuning_draws_its_searches_and_adds_up_what_they_found() -> None:
    screen = Screen()
    screen.draw(*tuning(FakeJob("0001-tune", "tune", Settings.make(), lambda job: iter(()))))
    screen.settle()
    state = screen.mirrors[0].state
    assert state["trials"]
    assert len(screen.mirrors[0].rows("curve")) > 50
    assert len(state["raced"]) == 4
    assert state["progress"]["doing"] == "Tuning"
    assert state["progress"]["words"][0] == "2 searches"
    assert state["progress"]["ended"] == (
        "batch_size=256 · lr=4.7e-3 · compared: the present settings stay"
    )


def test_race_and_tune_are_buttons_whose_code_is_shown() -> None:
    bench = FakeBench()
    panel, lines = Panel(bench), said(bench)
    panel.header.race.click()
    wait_for(lambda: answer(panel, "find_lr"))
    panel.run.tune.click()
    wait_for(lambda: answer(panel, "find_batch_size"))
    assert bench.settings.batch_size == 32
    use(panel, "find_batch_size")
    assert bench.settings.batch_size == 256
    assert lines == ["bench.find_lr(race=True)", "bench.tune()", "bench.set(batch_size=256)"]


@pytest.mark.parametrize(
    ("name", "value"), [("num_workers", 2), ("precision", "bf16-mixed"), ("weight_decay", 0.1)]
)
def test_workers_precision_and_decay_have_a_find_button_in_the_form(name: str, value: Any) -> None:
    bench = FakeBench()
    panel, lines = Panel(bench), said(bench)
    asked(panel, "press", button=f"find_{name}")
    wait_for(lambda: answer(panel, f"find_{name}"))
    assert getattr(bench.settings, name) != value, "nothing is applied without a click"
    use(panel, f"find_{name}")
    assert getattr(bench.settings, name) == value
    assert panel.controls[name].read() == value
    assert answer(panel, f"find_{name}") == f"{value} in use"
    assert lines[-1] == f"bench.set({name}={value!r})"


def test_a_recipe_has_a_find_button_at_the_optimizer() -> None:
    bench = FakeBench()
    panel, lines = Panel(bench), said(bench)
    asked(panel, "press", button="find_optimizer")
    wait_for(lambda: answer(panel, "find_recipe") == "muon, lr=0.03, cosine")
    use(panel, "find_recipe")
    assert (bench.settings.optimizer, bench.settings.lr) == ("muon", 0.03)
    assert panel.controls["optimizer"].read() == "muon"
    assert lines[0] == "bench.find_recipe()"


def test_the_trials_of_recipes_are_on_the_progress_line() -> None:
    screen = Screen()
    job = FakeJob("0001-find_recipe", "find_recipe", Settings.make(), lambda job: iter(()))
    screen.draw(*recipes(job))
    screen.settle()
    progress = screen.mirrors[0].state["progress"]
    assert progress["values"] == [
        ["present settings", "held-out loss 0.5"],
        ["muon, lr=0.03, cosine", "held-out loss 0.25"],
    ]
    assert progress["ended"] == "muon, lr=0.03, cosine"


def test_the_stage_follows_the_job_and_within_a_tuning_its_searches() -> None:
    screen = Screen()
    state = screen.mirrors[0].state
    stages = []
    job = FakeJob("0001-tune", "tune", Settings.make(), lambda job: iter(()))
    for event in (*tuning(job), started(), *swept(2)):
        screen.draw(event)
        screen.settle()
        if stages[-1:] != [state["stage"]]:
            stages.append(state["stage"])
    assert stages == ["tune", "find_batch_size", "tune", "find_lr", "tune", "fit", "find_lr"]
    offered = {answer["kind"]: answer["sets"] for answer in state["answers"]}
    assert offered == {"find_batch_size": "batch_size=256", "check": "", "find_lr": "lr=4.7e-3"}


def test_what_a_closed_tab_draws_is_sent_when_it_is_opened() -> None:
    screen = Screen()
    sent = screen.mirrors[0]

    def opened(tab: str) -> None:
        screen.view._heard(screen.view, {"type": "ask", "what": "drawer", "tab": tab}, [])
        screen.settle()

    opened("")
    before = dict(sent.state)
    screen.draw(started(), *(flush(5 * i, 5) for i in range(4)))
    screen.settle()
    assert "heat" not in sent.tables
    assert {"map", "clips", "norm"}.isdisjoint(sent.state.keys() - before.keys())
    opened("gradients")
    assert len(sent.rows("heat")) == 20
    assert sent.state["norm"]["caption"]
    opened("pace")
    screen.draw(flush(20, 5))
    screen.settle()
    assert len(sent.rows("heat")) == 20, "it is closed again"
    opened("gradients")
    assert len(sent.rows("heat")) == 25
    assert sent.gaps == 0


def test_the_clip_value_has_a_find_button_too() -> None:
    bench = FakeBench()
    panel, lines = Panel(bench), said(bench)
    panel.header.find_clip.click()
    wait_for(lambda: answer(panel, "find_clip_val"))
    assert bench.settings.gradient_clip_val is None
    use(panel, "find_clip_val")
    assert bench.settings.gradient_clip_val == 0.5
    assert lines == ["bench.find_clip_val()", "bench.set(gradient_clip_val=0.5)"]


def test_the_trials_of_weight_decays_are_on_the_progress_line() -> None:
    screen = Screen()
    screen.draw(
        *decays(
            FakeJob(
                "0001-find_weight_decay", "find_weight_decay", Settings.make(), lambda job: iter(())
            )
        )
    )
    screen.settle()
    progress = screen.mirrors[0].state["progress"]
    assert progress["values"] == [
        ["weight_decay=0.01", "held-out loss 0.5"],
        ["weight_decay=0.1", "held-out loss 0.25"],
    ]


def test_the_trials_of_workers_are_on_the_progress_line() -> None:
    screen = Screen()
    screen.draw(
        *speeds(
            FakeJob(
                "0001-find_num_workers", "find_num_workers", Settings.make(), lambda job: iter(())
            )
        )
    )
    screen.settle()
    progress = screen.mirrors[0].state["progress"]
    assert progress["values"] == [
        ["num_workers=0", "100 updates/s"],
        ["num_workers=2", "200 updates/s"],
    ]
    assert progress["ended"] == "num_workers=2"
    assert progress["done"] == 2


def test_the_shares_of_the_time_are_shown() -> None:
    """Of the last seconds while it runs, of all at its end; what a stranger's record says about it is taken with care."""
    screen = Screen()
    spent = [TimeSpent(step, 1.0, {"forward": 0.25, "data": 0.75}) for step in range(15)]
    screen.draw(started(), *spent, TimeSpent(20, 10.0, {"forward": 10.0}))
    screen.settle()
    live = screen.mirrors[0].state["time"]
    assert live["shares"] == [
        ["forward", pytest.approx(12.25 / 19, abs=1e-4)],
        ["data", pytest.approx(6.75 / 19, abs=1e-4)],
    ]
    screen.draw(
        TimeSpent(21, 1.0, {"x" * 1000: float("nan"), "data": -1.0}), RunEnded("finished", 20, 25.0)
    )
    screen.settle()
    over = screen.mirrors[0].state["time"]
    assert over["shares"] == [
        ["forward", pytest.approx(13.75 / 25)],
        ["data", pytest.approx(11.25 / 25)],
    ]
    assert over["title"] != live["title"]
    screen.draw(started())
    screen.settle()
    assert screen.mirrors[0].state["time"] is None


def test_a_sweep_without_points_takes_no_place_among_them_and_all_stay_small() -> None:
    screen = Screen()
    start, *points = swept(1)
    screen.draw(start, *points, *swept(2)[:1], RunEnded("stopped", 0, 0.0), *swept(3)[:30])
    screen.settle()
    assert [curve["run"] for curve in screen.mirrors[0].state["earlier_curves"]] == ["0001"]
    many = [point for point in points for _ in range(50)]
    screen.draw(start, *many, start, *many, start)
    screen.settle()
    curves = screen.view._picture.sweep._kept[0]
    assert all(curve.points.length <= POINTS for curve in curves)
    assert len(screen.mirrors[0].rows("earlier")) <= 2 * EARLIER_POINTS
    assert max(screen.sent) <= LIMIT


def test_sweeps_within_a_fit_are_told_apart() -> None:
    screen = Screen()
    inside = [event for event in swept(1) if not isinstance(event, RunStarted | RunEnded)]
    screen.draw(started(), *inside, *inside)
    screen.settle()
    assert screen.mirrors[0].state["swept"]["run"] == "r1, sweep 2"
    assert [curve["run"] for curve in screen.mirrors[0].state["earlier_curves"]] == ["r1"]


def test_what_a_sweep_says_is_sorted_by_what_it_is_for() -> None:
    screen = Screen()
    screen.draw(*swept(1))
    screen.settle()
    curve = screen.mirrors[0].state["curve"]
    assert curve["diverged"] == 2.1
    assert curve["doubts"] == ["The loss fell by only 9%: the curve says little."]
    assert curve["notes"] == ["24x below divergence", "Worth trying: 2.3e-3 to 9.4e-3"]
    assert [s["name"] for s in curve["suggestions"]] == [
        "landmarks",
        "steepest",
        "valley",
        "slide",
        "minimum",
    ]


def test_each_optimizer_has_its_own_curve() -> None:
    screen = Screen()
    screen.draw(*swept(1), *swept(2, optimizer=1, shift=3.0))
    screen.settle()
    state = screen.mirrors[0].state
    assert (state["swept"]["optimizer"], state["curve"]["suggestion"]) == (1, pytest.approx(0.0141))
    assert state["earlier_curves"] == [], "the other one's is not behind it"
    assert "Optimizer 1 of 2" in state["swept"]["whose"]
    assert "0.5 times" in state["swept"]["whose"]
    second = screen.mirrors[0].rows("curve")
    screen.view.look_at(0)
    assert state["swept"]["groups"] == [
        {"name": "backbone", "ratio": 1.0},
        {"name": "head", "ratio": 10.0},
    ]
    assert (state["swept"]["optimizer"], state["curve"]["suggestion"]) == (0, 4.7e-3)
    assert len(screen.mirrors[0].rows("curve")) != len(second)
    screen.view.look_at(1)
    np.testing.assert_array_equal(screen.mirrors[0].rows("curve"), second)
    screen.view.look_at(2)
    assert (state["curve"], state["swept"]) == (None, {"optimizer": 2}), "nothing is known of it"
    assert len(screen.mirrors[0].rows("curve")) == 0


def test_points_of_one_optimizer_do_not_come_into_the_curve_of_another() -> None:
    screen = Screen()
    events = swept(2, optimizer=1)
    screen.draw(*swept(1), *events[:20])
    screen.view.look_at(0)
    length = len(screen.mirrors[0].rows("curve"))
    screen.draw(*events[20:])
    screen.settle()
    assert len(screen.mirrors[0].rows("curve")) == length
    screen.view.look_at(1)
    assert len(screen.mirrors[0].rows("curve")) == len(events) - 3


def test_a_size_is_shown_while_it_is_tried_and_then_with_its_outcome() -> None:
    screen = Screen()
    events = searched()
    screen.draw(*events[:4])
    screen.settle()
    state = screen.mirrors[0].state
    assert state["trying"] == {"size": 4, "batches": None}
    assert [trial["size"] for trial in state["trials"]] == [2]
    assert state["room"] == {"bytes": int(4.3e10), "words": "43 GB (free when it was tried)"}
    screen.draw(*events[4:])
    screen.settle()
    assert state["trying"] is None
    assert [trial["state"] for trial in state["trials"]] == ["fits"] * 9 + ["memory"]
    assert state["trials"][-1]["error"].startswith(
        "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0"
    )


def test_a_search_that_fails_says_so_at_the_size_that_it_failed_of() -> None:
    screen = Screen()
    error = "Traceback (most recent call last):\n  line 3\nValueError: labels go to 12"
    screen.draw(*searched()[:4], RunEnded("failed", 0, 1.0, error))
    screen.settle()
    last = screen.mirrors[0].state["trials"][-1]
    assert (last["size"], last["state"]) == (4, "error")
    assert last["error"].splitlines()[0] == "ValueError: labels go to 12"
    assert "line 3" in last["error"]
    screen.draw(*searched()[:4], RunEnded("stopped", 0, 1.0))
    screen.settle()
    state = screen.mirrors[0].state
    assert ([trial["size"] for trial in state["trials"]], state["trying"]) == ([2], None)


def test_the_limit_is_said_with_where_it_is_from() -> None:
    screen = Screen()
    settings = Settings.make().model_dump()
    screen.draw(RunStarted("r", "find_batch_size", settings, "cuda:0", memory=int(8e10)))
    screen.settle()
    state = screen.mirrors[0].state
    assert state["room"]["words"] == "80 GB (all of the device)"
    screen.draw(
        RunStarted("r", "find_batch_size", settings, "cpu", request={"max_memory": int(3e8)})
    )
    screen.settle()
    assert state["room"] is None
    screen.draw(TrialStarted(2), Trial(2, True, limit_bytes=int(3e8)))
    screen.settle()
    assert state["room"]["words"] == "300 MB (max_memory)"


def test_long_errors_share_the_room_of_a_message() -> None:
    screen = Screen()
    screen.draw(*searched()[:1], Trial(64, False, error="no\n" + "x" * 5000))
    screen.settle()
    [only] = screen.mirrors[0].state["trials"]
    assert 1900 < len(only["error"]) <= 2000, "alone it may be long"
    assert max(screen.sent) <= LIMIT


def test_what_the_bench_is_set_to_is_marked() -> None:
    screen = Screen()
    screen.draw(SettingsSet(Settings.make(batch_size=64, accumulate_grad_batches=2).model_dump()))
    screen.settle()
    assert screen.mirrors[0].state["chosen"] == {"size": 64, "batches": 2}
    screen.draw(SettingsSet(Settings.make(accumulate_grad_batches={0: 8, 4: 4}).model_dump()))
    screen.settle()
    assert screen.mirrors[0].state["chosen"] == {"size": 32, "batches": None}


# -- the header and the bench


@pytest.fixture
def bench() -> FakeBench:
    return FakeBench(batch_size=32, accumulate_grad_batches=16, accelerator="cpu")


def ask(panel: Panel, what: str, **values: Any) -> None:
    """As the canvas does."""
    panel.canvas._heard(panel.canvas, {"type": "ask", "what": what, **values}, [])


def runs_the_same(lines: list[str], last: Callable[[FakeBench], Any]) -> Any:
    """What a bench says that is driven by these lines instead of by clicks."""
    bench = FakeBench(batch_size=32, accumulate_grad_batches=16, accelerator="cpu")
    for line in lines:
        eval(line, {"bench": bench})
    return last(bench)


def test_keeping_the_effective_batch_takes_both_settings_with_one_line(bench: FakeBench) -> None:
    panel, lines = Panel(bench), said(bench)
    assert panel.header.keep.text == "Keep effective batch at 512"
    panel.header.keep.pressed = True
    panel.header.find_batch_size.click()
    wait_for(lambda: answer(panel, "find_batch_size") == "2 x 256")
    use(panel, "find_batch_size")
    assert (bench.settings.batch_size, bench.settings.accumulate_grad_batches) == (256, 2)
    assert lines == [
        "bench.find_batch_size(keep_effective=True)",
        "bench.set(batch_size=256, accumulate_grad_batches=2)",
    ]
    assert answer(panel, "find_batch_size") == "2 x 256 in use"
    ask(panel, "use_batch_size", value=64, batches=8)
    assert lines[-1] == "bench.set(batch_size=64, accumulate_grad_batches=8)"
    assert panel.header.keep.text == "Keep effective batch at 512"
    wait_for(lambda: panel.canvas._picture.outbox._values["chosen"] == {"size": 64, "batches": 8})
    assert runs_the_same(lines, lambda bench: bench.settings) == bench.settings
    ask(panel, "use_batch_size", value=16)
    assert lines[-1] == "bench.set(batch_size=16)"


def test_an_effective_batch_that_changes_cannot_be_kept(bench: FakeBench) -> None:
    panel = Panel(bench)
    panel.header.keep.pressed = True
    bench.set(accumulate_grad_batches={0: 8, 4: 4})
    wait_for(lambda: "changes during the fit" in panel.header.keep.tooltip)  # it is said last
    assert panel.header.keep.disabled
    assert panel.header.keep.pressed is False


def test_a_choice_of_optimizer_decides_what_find_sweeps_and_what_is_offered(
    bench: FakeBench,
) -> None:
    bench.summary = type(bench.summary)(optimizers=2)
    panel, lines = Panel(bench), said(bench)
    assert panel.header.optimizers > 1
    panel.header.find_lr.click()
    wait_for(lambda: answer(panel, "find_lr") == "4.7e-3")
    assert bench.jobs[0].wait(60)  # else a click starts no other one
    asked(panel, "choose_optimizer", number=1)
    assert answer(panel, "find_lr") == "", "nothing is known of it yet"
    panel.header.find_lr.click()
    wait_for(lambda: answer(panel, "find_lr"))
    assert lines == ["bench.find_lr()", "bench.find_lr(optimizer=1)"]
    assert answer(panel, "find_lr") == "4.7e-3 (lr=9.4e-3)", "its rate is half of the setting"
    use(panel, "find_lr")
    assert lines[-1] == "bench.set(lr=0.0094)"
    assert answer(panel, "find_lr") == "4.7e-3 (lr=9.4e-3) in use"
    asked(panel, "choose_optimizer", number=0)
    assert answer(panel, "find_lr") == "4.7e-3"
    assert panel.canvas._picture.outbox._values["swept"]["optimizer"] == 0
    assert runs_the_same(lines, lambda bench: bench.settings) == bench.settings

    bench.find_lr(optimizer=1)  # from code: the panel follows
    wait_for(lambda: panel.header.optimizer == 1)
    assert Panel(FakeBench()).header.optimizers == 1


def test_a_panel_made_later_has_the_earlier_curves_of_each_optimizer(bench: FakeBench) -> None:
    bench.summary = type(bench.summary)(optimizers=2)
    for optimizer in (0, 0, 0, 0, 1, 1):
        assert bench.find_lr(**({"optimizer": 1} if optimizer else {})).wait(60)
    wait_for(lambda: bench.jobs[-1].over.is_set())
    panel = Panel(bench)
    assert panel.dispatcher.drain(60)
    values = panel.canvas._picture.outbox._values
    assert [curve["run"] for curve in values["earlier_curves"]] == ["find_lr-5"]
    asked(panel, "choose_optimizer", number=0)
    assert [curve["run"] for curve in values["earlier_curves"]] == ["find_lr-2", "find_lr-3"]
    assert values["swept"]["run"] == "find_lr-4"


def test_a_search_within_a_fit_that_never_ended_leaves_nothing_for_the_next() -> None:
    screen = Screen()
    inside = [event for event in searched() if isinstance(event, TrialStarted | Trial)]
    state = screen.mirrors[0].state
    screen.draw(started(), *inside[:5])
    screen.settle()
    assert [trial["size"] for trial in state["trials"]] == [2, 4]
    assert state["trying"]["size"] == 8
    screen.draw(flush(0, 5))  # the fit goes on
    screen.settle()
    assert (len(state["trials"]), state["trying"]) == (2, None)
    screen.draw(*inside[4:6])
    screen.settle()
    assert [trial["size"] for trial in state["trials"]] == [8], "those of another search are gone"
    screen.draw(RunEnded("failed", 5, 1.0, "no"), started(), *inside[:2])
    screen.settle()
    assert [trial["size"] for trial in state["trials"]] == [2]


def test_no_size_fits_and_nothing_is_offered(bench: FakeBench) -> None:
    panel = Panel(bench)
    bench.tell(RunStarted("x", "find_batch_size", bench.settings.model_dump(), "cpu"))
    bench.tell(SearchEnded(None, None, "stopped"))
    assert panel.dispatcher.drain(60)
    assert answer(panel, "find_batch_size") == ""
