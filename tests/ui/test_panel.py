"""The panel, driven as its front end does, on a bench that only pretends to train."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ipywidgets.widgets.widget import _instances
from torch import nn

import workbench as wb
from tests.ui.fakes import LAYERS, FakeBench, FakeJob, flush
from tests.waiting import wait_for
from workbench.events import (
    Called,
    Changed,
    CurveEnded,
    Deleted,
    Event,
    Logged,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    SettingsSet,
    Validated,
)
from workbench.settings import Settings
from workbench.ui import texts
from workbench.ui.attached import AttachedPanel
from workbench.ui.panel import Panel


def answer(panel: Panel, kind: str) -> str:
    """What the stage offers of this search: '4.7e-3', '4.7e-3 in use'; "": nothing to apply."""
    for offered in panel.canvas._picture.outbox._values["answers"]:
        if offered["kind"] == kind and offered["sets"]:
            return f"{offered['text']} in use" if offered["used"] else str(offered["text"])
    return ""


def use(panel: Panel, kind: str) -> None:
    """Click the button of this search on the stage."""
    panel.canvas._heard(panel.canvas, {"type": "ask", "what": "use", "kind": kind}, [])
    assert panel.dispatcher.drain(60)


def asked(panel: Panel, what: str, **values: Any) -> None:
    """As the front end does."""
    panel.canvas._heard(panel.canvas, {"type": "ask", "what": what, **values}, [])


def enter(panel: Panel, name: str, value: str | bool) -> None:
    """Enter a value into the control of a setting."""
    asked(panel, "enter", name=name, value=value)


def sent(panel: Panel) -> dict[str, Any]:
    """The values that the front end draws."""
    return panel.canvas._picture.outbox._values


@pytest.fixture
def bench() -> FakeBench:
    return FakeBench(gradient_clip_val=1.0, epochs=2, updates=40)


def endless(**settings: Any) -> FakeBench:
    """Its fits go on until they are stopped, however slow the test is."""
    return FakeBench(speed=0.02, epochs=100_000, **settings)


@pytest.fixture
def panel(bench: FakeBench) -> Panel:
    return Panel(bench)


def places(panel: Panel) -> list[float]:
    """Where the learning rate stands: settings, number box, the marker, which the slider has, too."""
    return [panel._bench.settings.lr, panel.controls["lr"].read(), panel.canvas.marker]


def test_box_marker_and_settings_move_together(panel: Panel, bench: FakeBench) -> None:
    panel.canvas.marker = 0.0123
    assert places(panel) == [0.0123] * 3
    enter(panel, "lr", "4.7e-3")
    assert places(panel) == [4.7e-3] * 3
    bench.set(lr=0.3)
    wait_for(lambda: panel.canvas.marker == 0.3)
    assert places(panel) == [0.3] * 3
    bench.set(lr=1e-12)
    wait_for(lambda: panel.canvas.marker == 1e-12)
    assert places(panel) == [1e-12] * 3


def test_the_clip_line_and_the_clip_box_move_together(panel: Panel, bench: FakeBench) -> None:
    panel.canvas.clip = 2.5
    assert (bench.settings.gradient_clip_val, panel.controls["gradient_clip_val"].read()) == (
        2.5,
        2.5,
    )
    enter(panel, "gradient_clip_val", "0")
    assert bench.settings.gradient_clip_val is None
    assert panel.canvas.clip == 0


def below(panel: Panel, name: str) -> str:
    """What is said below the box of a setting."""
    why = panel.controls[name].why
    shown = sent(panel)[f"field.{name}"]["why"]
    assert shown.lower() == why.lower()
    return why


def test_a_bad_value_stays_and_is_explained_below_its_box(panel: Panel, bench: FakeBench) -> None:
    timeout = panel.controls["rank_timeout"]
    enter(panel, "rank_timeout", "0")
    assert (bench.settings.rank_timeout, timeout.shown) == (600, "0")
    assert below(panel, "rank_timeout") == "should be greater than 0"
    enter(panel, "rank_timeout", "30")
    assert (bench.settings.rank_timeout, below(panel, "rank_timeout")) == (30, "")


def test_train_says_which_box_is_wrong(panel: Panel, bench: FakeBench) -> None:
    box = panel.controls["batch_size"]
    enter(panel, "batch_size", "1.5")
    assert (box.shown, bench.settings.batch_size) == ("1.5", 32)
    assert below(panel, "batch_size") == "should be a whole number"
    assert panel.run.fit.text == "Train: correct batch_size"
    enter(panel, "max_epochs", "-2")
    assert panel.run.fit.text == "Train: correct batch_size and 1 more"
    panel.run.fit.click()
    panel.run.tune.click()
    panel.header.find_lr.click()
    assert bench.jobs == []
    assert panel.notice.lines == [
        ("error", "Find learning rate: correct batch_size, max_epochs first.")
    ]
    enter(panel, "max_epochs", "")
    panel.header.find_batch_size.click()
    assert [job.kind for job in bench.jobs] == ["find_batch_size"], (
        "it looks for the value that is wrong"
    )
    assert bench.jobs[0].wait(60)
    wait_for(lambda: answer(panel, "find_batch_size"))
    use(panel, "find_batch_size")
    assert (box.shown, below(panel, "batch_size"), panel.notice.lines) == ("256", "", [])
    assert panel.run.fit.text == "▶ Train"


def test_a_line_in_the_canvas_that_is_refused_goes_back(panel: Panel, bench: FakeBench) -> None:
    panel.canvas.marker = 1e6
    assert places(panel) == [1e-3] * 3
    assert panel.notice.lines == [("error", "lr: should be at most 1000")]


def test_a_rate_of_0_is_a_rate(panel: Panel, bench: FakeBench) -> None:
    enter(panel, "lr", "0")
    assert bench.settings.lr == 0
    wait_for(lambda: panel.canvas.marker == panel.controls["lr"].read() == 0)
    assert panel.notice.lines == []
    bench.set(lr=0.1)
    wait_for(lambda: panel.canvas.marker == panel.controls["lr"].read() == 0.1)


def test_a_text_that_is_refused_stays_until_it_is_put_right(panel: Panel, bench: FakeBench) -> None:
    control = panel.controls["early_stopping"]
    enter(panel, "early_stopping", "{'monitor': 'val_loss', 'patience': -1}")
    assert bench.settings.early_stopping == ()
    assert "patience" in control.shown, "a long text is not typed twice"
    assert "patience" in below(panel, "early_stopping")
    enter(panel, "seed", "7")
    assert "patience" in control.shown
    assert below(panel, "early_stopping"), "what is still wrong is still said"
    enter(panel, "early_stopping", "{'monitor': 'val_loss', 'patience': 1}")
    assert bench.settings.early_stopping[0].patience == 1
    assert below(panel, "early_stopping") == ""


def test_a_refused_text_can_be_emptied_and_gives_way_to_code(
    panel: Panel, bench: FakeBench
) -> None:
    control = panel.controls["max_time"]
    enter(panel, "max_time", "soon")
    assert below(panel, "max_time")
    enter(panel, "max_time", "")
    assert below(panel, "max_time") == ""
    enter(panel, "max_time", "soon")
    bench.set(max_time="00:00:10:00")
    wait_for(lambda: control.shown == "00:00:10:00" and not control.why)


def test_one_batch_is_not_all_of_them(panel: Panel, bench: FakeBench) -> None:
    enter(panel, "limit_train_batches", "1")
    assert type(bench.settings.limit_train_batches) is int
    enter(panel, "limit_train_batches", "1.0")
    assert type(bench.settings.limit_train_batches) is float


def test_the_form_and_the_bench_follow_each_other(panel: Panel, bench: FakeBench) -> None:
    enter(panel, "seed", "7")
    assert bench.settings.seed == 7
    bench.set(num_workers=3, max_epochs=None)
    wait_for(
        lambda: (
            panel.controls["num_workers"].read() == 3
            and sent(panel)["steps"]["placeholders"]["max_epochs"] == "10"
        )
    )


def test_devices_are_set_from_the_form_and_a_batch_is_each_ones(
    panel: Panel, bench: FakeBench
) -> None:
    bench.set(accelerator="cpu")
    panel._show_settings()
    assert "each of" not in sent(panel)["steps"]["each"]
    enter(panel, "devices", "2")
    assert bench.settings.devices == 2
    assert "each of 2" in sent(panel)["steps"]["each"]
    bench.set(strategy="launch", devices="auto", launch={"num_processes": 3})
    panel._show_settings()
    assert "each of 3" in sent(panel)["steps"]["each"]
    bench.set(strategy="auto", launch=None)
    # of GPUs, and this is set to be the CPU: a job would say so
    enter(panel, "devices", "[0, 1]")
    assert "each of" not in sent(panel)["steps"]["each"]
    enter(panel, "devices", "two")
    assert bench.settings.devices == (0, 1)
    assert "a number of devices" in below(panel, "devices")


def test_found_values_are_offered_and_only_a_click_applies_them(
    panel: Panel, bench: FakeBench
) -> None:
    panel.header.find_lr.click()
    panel.header.find_batch_size.click()
    wait_for(lambda: answer(panel, "find_lr") and answer(panel, "find_batch_size"))
    assert (bench.settings.lr, bench.settings.batch_size) == (1e-3, 32)
    assert (answer(panel, "find_lr"), answer(panel, "find_batch_size")) == ("4.7e-3", "256")
    use(panel, "find_lr")
    use(panel, "find_batch_size")
    assert places(panel) == [4.7e-3] * 3
    assert bench.settings.batch_size == panel.controls["batch_size"].read() == 256
    assert answer(panel, "find_lr") == "4.7e-3 in use"
    enter(panel, "lr", "1e-2")
    assert panel.dispatcher.drain(60)
    assert answer(panel, "find_lr") == "4.7e-3", "still there to go back to"


def test_what_the_button_says_is_what_it_sets(panel: Panel, bench: FakeBench) -> None:
    bench.tell(RunStarted("x", "find_lr", bench.settings.model_dump(), "cpu"))
    bench.tell(CurveEnded("edge", (), 0.006160316, ()))
    assert panel.dispatcher.drain(60)
    assert answer(panel, "find_lr") == "6.16e-3"
    use(panel, "find_lr")
    assert places(panel) == [6.16e-3] * 3
    assert answer(panel, "find_lr") == "6.16e-3 in use"


def test_no_suggestion_no_button(panel: Panel, bench: FakeBench) -> None:
    bench.tell(RunStarted("x", "find_lr", bench.settings.model_dump(), "cpu"))
    bench.tell(CurveEnded("no edge", (), None, ("the loss never fell",)))
    assert panel.dispatcher.drain(60)
    assert answer(panel, "find_lr") == ""
    use(panel, "find_lr")
    assert bench.settings.lr == 1e-3


def test_buttons_say_what_can_be_done() -> None:
    slow = endless()
    panel = Panel(slow)
    assert panel.run.stop.disabled
    assert panel.run.pause.disabled
    panel.run.fit.click()
    wait_for(lambda: not panel.run.stop.disabled and not panel.run.pause.disabled)
    panel.run.pause.click()
    wait_for(lambda: panel.run.pause.text == "▶ Resume")
    panel.run.pause.click()
    wait_for(lambda: panel.run.pause.text == "❚❚ Pause")
    panel.run.stop.click()
    wait_for(lambda: panel.run.stop.disabled)
    assert slow.jobs[0].status == "stopped"


def test_stop_says_at_once_that_it_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = endless()
    panel = Panel(slow)
    panel.run.fit.click()
    wait_for(lambda: not panel.run.stop.disabled)
    with monkeypatch.context() as busy:
        busy.setattr(slow.jobs[0], "stop", lambda: None)  # in a long update
        panel.run.stop.click()
        assert panel.run.stop.text == "Stopping…"
    slow.jobs[0].stop()
    wait_for(lambda: panel.run.stop.disabled)
    assert panel.run.stop.text == "■ Stop"


def said(bench: FakeBench) -> list[str]:
    """The lines of code of what was asked for, from now on."""
    lines: list[str] = []
    bench._callbacks.append(
        lambda event: lines.append(event.code) if isinstance(event, Called) else None
    )
    return lines


def test_a_stopped_fit_can_be_continued() -> None:
    bench = endless()
    panel, lines = Panel(bench), said(bench)
    assert not panel.run.continue_.visible, "there is nothing to go on with"
    panel.run.fit.click()
    wait_for(lambda: not panel.run.pause.disabled)
    assert not panel.run.continue_.visible
    panel.run.stop.click()
    wait_for(lambda: panel.run.continue_.visible)
    late = Panel(bench)
    assert late.run.continue_.visible, "a panel made now says the same"
    panel.run.continue_.click()
    panel.run.continue_.click()
    assert lines == ["bench.fit()", "bench.fit(start='continue')"], (
        "once, however often it is clicked"
    )
    wait_for(lambda: not panel.run.continue_.visible and not late.run.continue_.visible)
    bench.jobs[1].stop()
    wait_for(lambda: panel.run.continue_.visible)
    bench.trouble = RuntimeError("no")
    panel.run.continue_.click()
    assert panel.notice.lines == [("error", "Continue: RuntimeError: no")]
    assert panel.run.continue_.visible
    bench.jobs[1].folder = SimpleNamespace(path=Path("no-such-run"))
    bench.tell(Deleted(bench.jobs[1].id))
    wait_for(lambda: not panel.run.continue_.visible)


def test_a_finished_fit_can_be_continued_to_another_length(panel: Panel, bench: FakeBench) -> None:
    lines = said(bench)
    panel.run.fit.click()
    assert bench.jobs[0].wait(60)
    assert panel.dispatcher.drain(60)
    assert not panel.run.continue_.visible, "it has done what it was to do"
    enter(panel, "lr", "0.01")
    assert not panel.run.continue_.visible
    enter(panel, "max_epochs", "20")
    assert panel.run.continue_.visible
    panel.run.continue_.click()
    assert lines[-1] == "bench.fit(start='continue', max_epochs=20)"
    assert bench.jobs[1].wait(60)


def test_a_fit_is_continued_as_code_would(tmp_path: Path) -> None:
    """With a bench that trains: the updates behind those of the run that was stopped."""
    model = Held()
    with real(model, tmp_path) as bench:
        panel = Panel(bench)
        model.gate.clear()
        model.reached.clear()
        stopped = bench.fit(max_epochs=3)
        # stopped before its first update it would have nothing to go on from
        assert model.reached.wait(120)
        wait_for(lambda: panel._run_id == stopped.id)
        panel.run.stop.click()
        model.gate.set()
        done = stopped.result()
        assert done.status == "stopped"
        wait_for(lambda: panel.run.continue_.visible)
        panel.run.continue_.click()
        whole = bench.jobs[-1].result()
        assert (whole.status, whole.settings.max_epochs) == ("finished", 3)
        assert [event.step for event in whole.resumes] == [len(done.history["step"])]
        assert len(whole.history["step"]) == 6
        assert panel.dispatcher.drain(60)
        assert not panel.run.continue_.visible  # the controls say one epoch, and it has had three
        enter(panel, "max_epochs", "4")
        assert panel.run.continue_.visible
        panel.run.continue_.click()
        assert len(bench.jobs[-1].result().history["step"]) == 8


def test_a_recorded_fit_is_repeated_by_a_click(tmp_path: Path) -> None:
    """And one that kept no start says why not."""
    with real(nn.Linear(2, 1), tmp_path) as bench:
        panel = Panel(bench)
        values = panel.canvas._picture.outbox._values
        panel.history.look()
        bench.fit().result()
        bench.fit(keep_start=0).result()
        wait_for(lambda: "no start/start.json" in values.get("unkept", {}).get("0002-fit", ""))
        wait_for(lambda: "0001-fit" not in values["unkept"])
        asked(panel, "rerun", run="0001-fit")
        wait_for(
            lambda: (
                [text for _, text in panel.notice.lines]
                == ["0003-fit repeats 0001-fit: 2 of 2 losses equal"]
            )
        )
        asked(panel, "rerun", run="0002-fit")
        wait_for(lambda: "Rerun: FileNotFoundError: 0002-fit cannot" in panel.notice.lines[0][1])
        panel.close()


def test_a_running_fit_is_changed_by_its_own_button_only() -> None:
    bench = endless(gradient_clip_val=1.0)
    panel = Panel(bench)
    assert not panel.run.apply.visible
    panel.run.fit.click()
    wait_for(lambda: not panel.run.pause.disabled)
    enter(panel, "lr", "2e-4")
    enter(panel, "gradient_clip_val", "0")
    assert panel.run.apply.visible
    assert panel.run.apply.text == "Apply to the run: lr 2e-4, clip off"
    assert bench.jobs[0].changes == {}
    panel.run.apply.click()
    wait_for(lambda: not panel.run.apply.visible)
    bench.jobs[0].stop()


def test_errors_of_a_click_are_shown(panel: Panel, bench: FakeBench) -> None:
    bench.trouble = RuntimeError("the <b>bench</b> is closed")
    panel.run.fit.click()
    assert panel.notice.lines == [("error", "Train: RuntimeError: the <b>bench</b> is closed")]
    asked(panel, "write_script", path="")
    wait_for(lambda: len(panel.notice.lines) == 2)
    assert "Export" in panel.notice.lines[0][1]


def test_errors_and_messages_of_a_job_are_shown_and_escaped(panel: Panel, bench: FakeBench) -> None:
    bench.tell(RunStarted("x", "fit", bench.settings.model_dump(), "cpu"))
    bench.tell(Message("weights <changed>", "warning"))
    # health tells of those
    bench.tell(Message("loss is nan at update 1. The update was not taken.", "warning"))
    bench.tell(
        RunEnded(
            "failed",
            3,
            0.1,
            "ValueError: no",
            where="cell 4, line 7: net(x)",
            traceback="Traceback\n" + 40_000 * "é" + "ValueError: no",
        )
    )
    assert panel.dispatcher.drain(60)
    assert panel.notice.lines == [("warning", "weights <changed>")]
    failure = panel.canvas._picture.outbox._values["failure"]
    trace = failure.pop("traceback")
    assert failure == {
        "title": "Training failed",
        "type": "ValueError",
        "message": "no",
        "where": "cell 4, line 7: net(x)",
        "advice": "",
        "remedies": [],
    }
    assert trace.endswith("ééValueError: no")
    # It goes when the next job starts, as the notice of a click that failed does.
    panel.notice.attempt("Fit", lambda: 1 / 0)
    bench.tell(RunStarted("y", "fit", bench.settings.model_dump(), "cpu"))
    assert panel.dispatcher.drain(60)
    assert panel.canvas._picture.outbox._values["failure"] is None
    assert panel.notice.lines == [("warning", "weights <changed>")]


def test_a_broken_canvas_is_said_and_does_not_stop_the_rest(
    panel: Panel, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel.canvas, "draw", lambda event: 1 / 0)
    monkeypatch.setattr(panel.dispatcher, "_flush", lambda: 1 / 0)
    bench.set(lr=0.25)
    assert panel.dispatcher.drain(60)
    assert any("ZeroDivisionError" in text for _, text in panel.notice.lines)


def test_export_writes_where_it_is_told(panel: Panel, bench: FakeBench) -> None:
    gate, script = threading.Event(), bench.script

    def late(run: str | None = None, *, format: str | None = None) -> str:
        assert gate.wait(60)
        return script(run)

    bench.script = late  # type: ignore[method-assign]
    panel.run.export.pressed = True
    asked(panel, "write_script", path="out/mine.py")
    wait_for(lambda: bench.exported)
    assert bench.exported == ["out/mine.py"]
    wait_for(lambda: panel.notice.lines == [("info", "Written: out/mine.py")])
    wait_for(lambda: not panel.run.export.pressed)
    gate.set()
    wait_for(previewed)
    assert sent(panel).get("script") is None, "the preview that comes behind it is not shown"
    assert panel.notice.lines == [("info", "Written: out/mine.py")]


def test_while_a_script_is_verified_the_panel_says_so(panel: Panel, bench: FakeBench) -> None:
    gate = threading.Event()

    def export(path: str, run: str | None = None, *, format: str | None = None) -> None:
        assert gate.wait(60)
        bench.tell(Message(f"{path}: verified: 3 updates repeat the run"))

    bench.export = export  # type: ignore[method-assign]
    panel.run.export.pressed = True
    asked(panel, "write_script", path="out/mine.py")
    wait_for(lambda: sent(panel).get("writing") == "out/mine.py")
    gate.set()
    said = {"out/mine.py: verified: 3 updates repeat the run", "Written: out/mine.py"}
    wait_for(lambda: {text for _, text in panel.notice.lines} == said)
    wait_for(lambda: not panel.run.export.pressed)
    assert sent(panel)["writing"] == ""


def test_export_offers_other_formats(panel: Panel, bench: FakeBench) -> None:
    shown = panel.canvas._picture.outbox._values
    panel.run.export.pressed = True
    wait_for(lambda: (shown.get("script") or {}).get("format") == "script")
    asked(panel, "choose_format", format="notebook")
    wait_for(lambda: shown["script"]["format"] == "notebook")
    assert shown["script.0"]["text"] == "# %% [markdown]\n# # A\n\n# %%\nx = 1\ny = 2\n"
    asked(panel, "write_script", path="")
    wait_for(lambda: bench.exported)
    assert bench.exported == ["train.ipynb"]


def test_export_writes_a_page(panel: Panel, bench: FakeBench) -> None:
    shown = panel.canvas._picture.outbox._values
    panel.run.export.pressed = True
    asked(panel, "choose_format", format="page")
    wait_for(lambda: (shown.get("script") or {}).get("format") == "page")
    assert shown["script.0"]["text"].startswith("bench.export('run.html')\n")
    asked(panel, "write_script", path="run.py")
    wait_for(lambda: panel.notice.lines != [])
    assert "run.py is no name of a page: give one that ends in .html." in panel.notice.lines[0][1]
    asked(panel, "write_script", path="")
    wait_for(lambda: bench.exported)
    assert bench.exported == ["run.html"]
    assert bench.export_options == {}


def test_a_script_has_the_options_that_are_ticked(panel: Panel, bench: FakeBench) -> None:
    shown = panel.canvas._picture.outbox._values
    panel.run.export.pressed = True
    wait_for(lambda: (shown.get("script") or {}).get("options") == [])
    asked(panel, "choose_option", option="log_file", wanted=True)
    asked(panel, "choose_option", option="resume", wanted=True)
    wait_for(lambda: sorted(shown["script"]["options"]) == ["log_file", "resume"])
    assert {"# log_file", "# resume"} <= set(shown["script.0"]["text"].splitlines())
    asked(panel, "choose_option", option="log_file", wanted=False)
    wait_for(lambda: shown["script"]["options"] == ["resume"])
    asked(panel, "write_script", path="")
    wait_for(lambda: bench.exported)
    assert bench.export_options == {"resume": True}


def test_an_option_that_a_run_cannot_have_is_refused_with_its_reason(
    panel: Panel, bench: FakeBench
) -> None:
    bench.not_resumable = "its batch size changes on the way"
    shown = panel.canvas._picture.outbox._values
    panel.run.export.pressed = True
    asked(panel, "choose_option", option="checks", wanted=True)
    asked(panel, "choose_option", option="resume", wanted=True)
    wait_for(lambda: (shown.get("script") or {}).get("refused"))
    assert shown["script"]["refused"] == {"resume": "its batch size changes on the way"}
    assert shown["script"]["options"] == ["checks"]
    assert panel.notice.lines == []
    asked(panel, "write_script", path="")
    wait_for(lambda: bench.exported)
    assert bench.export_options == {"checks": True}


def test_other_formats_have_no_options(panel: Panel, bench: FakeBench) -> None:
    shown = panel.canvas._picture.outbox._values
    panel.run.export.pressed = True
    asked(panel, "choose_option", option="resume", wanted=True)
    asked(panel, "choose_format", format="settings")
    wait_for(lambda: (shown.get("script") or {}).get("format") == "settings")
    assert shown["script"]["options"] == []
    asked(panel, "write_script", path="")
    wait_for(lambda: bench.exported)
    assert bench.exported == ["train.yaml"]
    assert bench.export_options == {}


def previewed() -> bool:
    """Whether no script is being made to be shown."""
    return not any(thread.name == "workbench-preview" for thread in threading.enumerate())


def test_the_script_of_the_last_fit_is_that_of_the_last_fit(panel: Panel, bench: FakeBench) -> None:

    def script(run: str | None = None, *, format: str | None = None) -> str:
        if not all(job.done() for job in bench.jobs):
            raise RuntimeError("a job runs or waits")
        return f"# {len(bench.jobs)} fits\n"

    bench.script = script  # type: ignore[method-assign]
    shown = panel.canvas._picture.outbox._values
    panel.run.fit.click()
    assert bench.jobs[0].wait(60)
    assert panel.dispatcher.drain(60)
    panel.run.export.pressed = True
    wait_for(lambda: (shown.get("script.0") or {}).get("text") == "# 1 fits\n" and previewed())
    panel.run.fit.click()
    wait_for(lambda: shown["script.0"]["text"] == "# 2 fits\n" and previewed())
    # With a search behind the fit, or before it: when both are over.
    with bench._one:
        bench.fit()
        bench.find_lr()
    wait_for(lambda: shown["script.0"]["text"] == "# 4 fits\n" and previewed())
    assert panel.notice.lines == []
    asked(panel, "close_script")
    wait_for(lambda: shown["script"] is None)
    assert panel.run.export.pressed is False


def test_a_panel_made_later_has_seen_it_all_once(
    bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.find_lr().wait(60)
    assert bench.fit().wait(60)

    def subscribe(callback: Callable[[Any], None]) -> Callable[[], None]:
        """The bench's own thread is still telling what the panel will read."""
        for event in bench.jobs[-1].events:
            callback(event)
        return lambda: None

    monkeypatch.setattr(bench, "subscribe", subscribe)
    panel = Panel(bench)
    assert panel.dispatcher.drain(60)
    assert panel._replayed == panel._on_their_way == {}
    picture = panel.canvas._picture
    assert len(picture._gradients.clipping.norms) == 80
    assert answer(panel, "find_lr") == "4.7e-3"
    assert panel.run.stop.disabled


def test_a_panel_made_later_says_that_the_last_job_failed_before_it_began(bench: FakeBench) -> None:
    assert bench.fit().wait(60)
    bench._start(
        "fit", lambda job: iter([RunEnded("failed", 0, 0.1, "Traceback\nTaskError: no such loss")])
    )
    assert bench.jobs[-1].wait(60)
    panel = Panel(bench)
    assert panel.dispatcher.drain(60)
    values = panel.canvas._picture.outbox._values
    assert (
        values["failure"]["title"],
        values["failure"]["type"],
        values["failure"]["message"],
    ) == ("Job failed", "TaskError", "no such loss")
    assert (values["progress"]["status"], panel.notice.lines) == ("failed", [])
    assert bench.find_lr().wait(60)
    later = Panel(bench)
    assert later.dispatcher.drain(60)
    assert later.canvas._picture.outbox._values["failure"] is None, "what has come since counts"


def test_one_panel_for_a_bench(bench: FakeBench) -> None:
    assert Panel.of(bench) is Panel.of(bench)
    assert Panel.of(FakeBench()) is not Panel.of(bench)


def test_a_closed_panel_hears_no_more(bench: FakeBench) -> None:
    panel = Panel.of(bench)
    panel.close()
    bench.set(lr=0.7)
    assert panel.controls["lr"].read() == 1e-3
    assert Panel.of(bench) is not panel


def test_the_static_face_has_a_picture_and_a_table(panel: Panel, bench: FakeBench) -> None:
    before, _ = panel._repr_mimebundle_()
    assert "ResNet" in before["text/plain"]
    assert "image/png" not in before
    panel.run.fit.click()
    assert bench.jobs[0].wait(60)
    wait_for(lambda: panel.run.stop.disabled and panel.static_output.text())
    after, _ = panel._repr_mimebundle_()
    assert "fit finished" in after["text/plain"]
    assert len(after["image/png"]) > 5000
    table, picture = panel.static_output.bundles()
    assert table["text/html"].count("<table") == 1
    assert picture["image/png"] == after["image/png"]
    assert "application/vnd.jupyter.widget-view+json" in after


def test_a_click_from_one_thread_is_not_lost_while_another_shows_settings(
    panel: Panel, bench: FakeBench
) -> None:
    """Settings come through the pump while a person edits; what they typed last is what holds."""
    noise = threading.Event()

    def make_noise() -> None:
        while not noise.is_set():
            # always some, and never more than are shown in a moment
            if len(panel.dispatcher._events) < 10:
                bench.tell(SettingsSet(bench.settings.model_dump()))
            time.sleep(0.0005)

    thread = threading.Thread(target=make_noise)
    thread.start()
    try:
        for seed in range(1, 60):
            enter(panel, "seed", str(seed))
            assert bench.settings.seed == seed
    finally:
        noise.set()
        thread.join()
    assert panel.dispatcher.drain(60)
    assert panel.controls["seed"].read() == 59


def test_an_edit_counts_that_was_shown_over_before_it_was_heard(
    panel: Panel, bench: FakeBench
) -> None:
    """While an entered value is read, another thread brings the controls to the settings."""
    control = panel.controls["seed"]
    means = control.means
    shows = threading.Thread(target=panel._show_settings)

    def means_late(entered: Any) -> Any:
        if shows.ident is None:
            shows.start()
            shows.join(0.3)  # to its end, but where it waits for the edit
        return means(entered)

    control.means = means_late
    enter(panel, "seed", "7")
    shows.join()
    assert bench.settings.seed == 7
    assert panel.dispatcher.drain(60)
    assert control.read() == 7


def test_a_panel_is_two_models(bench: FakeBench) -> None:
    """Its canvas and the layout of that: a page with many panels loads each of their models."""
    before = set(_instances)
    panel = Panel(bench)
    enter(panel, "seed", "7")
    asked(panel, "drawer", tab="settings")
    assert len(set(_instances) - before) == 2


def test_what_the_front_end_may_press_is_named(panel: Panel, bench: FakeBench) -> None:
    asked(panel, "press", button="profile")
    assert [job.kind for job in bench.jobs] == ["profile"]
    asked(panel, "press", button="no such button")
    asked(panel, "enter", name="no_such_setting", value="1")
    assert [level for level, _ in panel.notice.lines] == ["error", "error"]


def test_making_a_panel_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def noted(thread: threading.Thread) -> None:
        # what other tests have left goes on as it likes
        if threading.current_thread() is threading.main_thread():
            started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    quiet = Panel(FakeBench())
    assert started == []
    assert Settings.make() == quiet._bench.settings


# -- on a real bench


class Held(nn.Module):
    """Its batches wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()

    def forward(self, x: Any) -> Any:
        self.reached.set()
        assert self.gate.wait(240)
        return self.layer(x)


def real(model: nn.Module, root: Path) -> wb.Workbench:
    data = (torch.zeros(8, 2), torch.zeros(8, 1))
    return wb.Workbench(
        model,
        train=data,
        loss=nn.functional.mse_loss,
        root=root,
        accelerator="cpu",
        batch_size=4,
        max_epochs=1,
    )


def test_a_job_that_waits_is_shown_and_can_be_stopped(tmp_path: Path) -> None:
    """Jobs of two benches take turns."""
    model = Held()
    with real(model, tmp_path) as other, real(Held(), tmp_path) as bench:
        panel = Panel(bench)
        values = panel.canvas._picture.outbox._values
        model.gate.clear()
        other.fit()
        wait_for(lambda: other.jobs[0].status == "running")
        first, second = bench.fit(), bench.fit()
        wait_for(lambda: not panel.run.stop.disabled)
        assert panel.dispatcher.drain(60)
        assert values["progress"]["status"] == "queued"
        assert panel.run.pause.disabled
        late = Panel(bench)
        assert not late.run.stop.disabled, "a panel made now says the same"
        panel.run.stop.click()
        assert first.result().status == "stopped", "though the other's goes on"
        assert second.status == "queued"
        assert panel.dispatcher.drain(60)
        assert values["code"] == "bench.jobs[0].stop()"
        panel.run.stop.click()
        wait_for(lambda: panel.run.stop.disabled and late.run.stop.disabled)
        assert second.result().status == "stopped"
        assert panel.dispatcher.drain(60)
        assert values["code"] == "bench.job.stop()"
        model.gate.set()
        assert other.jobs[0].result().status == "finished"
        assert values["progress"]["status"] == "stopped"


def test_what_another_process_asks_of_a_job_is_shown_as_its_line(tmp_path: Path) -> None:
    model = Held()
    with real(model, tmp_path) as bench:
        panel = Panel(bench)
        values = panel.canvas._picture.outbox._values
        model.gate.clear()
        fit = bench.fit()
        wait_for(model.reached.is_set)
        job = wb.attach(fit.id, tmp_path)
        job.change(lr=0.25)
        there = AttachedPanel.of(job)  # type: ignore[arg-type]
        wait_for(lambda: not there.pause.disabled)
        there.pause.click()
        wait_for(lambda: values.get("code") == f"wb.attach('0001-fit', {str(tmp_path)!r}).pause()")
        model.gate.set()
        wait_for(lambda: panel.run.pause.text == texts.RESUME)
        assert panel.dispatcher.drain(60)
        assert values["progress"]["status"] == "paused"
        assert panel._in_run["lr"] == 0.25
        wait_for(lambda: there.pause.text == texts.RESUME)
        there.stop.click()
        assert fit.result().status == "stopped"
        wait_for(lambda: values["progress"]["status"] == "stopped")
        assert values["code"] == f"wb.attach('0001-fit', {str(tmp_path)!r}).stop()"


def test_a_click_goes_to_the_job_that_runs_and_then_to_the_one_behind_it(tmp_path: Path) -> None:
    model = Held()
    with real(model, tmp_path) as bench:
        panel = Panel(bench)
        values = panel.canvas._picture.outbox._values
        model.gate.clear()
        fit = bench.fit()
        wait_for(lambda: panel._run_id == fit.id)
        sweep = bench.find_lr()
        assert panel.dispatcher.drain(60)
        assert values["progress"]["status"] == "running"
        assert panel._job() is fit
        enter(panel, "lr", "0.25")
        measure = {"type": "ask", "what": "measure_ratios", "on": True}
        for click, line in (
            (panel.run.validate.click, "bench.job.validate()"),
            (panel.run.checkpoint.click, "bench.job.checkpoint()"),
            (panel.run.apply.click, "bench.job.change(lr=0.25)"),
            (lambda: panel.canvas._heard(panel.canvas, measure, []),
             "bench.job.change(track_update_ratio=True); bench.set(track_update_ratio=True)"),
            (panel.run.pause.click, "bench.job.pause()"),
            (panel.run.stop.click, "bench.job.stop()"),
        ):  # fmt: skip
            click()
            assert panel.dispatcher.drain(60)
            assert values["code"] == line
        model.gate.set()
        assert fit.result().status == "stopped"
        assert panel._job() is sweep, "whatever the panel has heard by now"
        sweep.result()
        assert sweep.status == "finished"
        wait_for(lambda: panel.run.stop.disabled and values["progress"]["status"] == "finished")
        assert values["progress"]["doing"] == "Learning-rate finder"


def test_more_actions_profile_updates_and_show_what_limits_them(
    panel: Panel, bench: FakeBench
) -> None:
    values = panel.canvas._picture.outbox._values
    panel.run.profile.click()
    assert bench.jobs[0].wait(60)
    wait_for(lambda: (values.get("progress") or {}).get("status") == "finished")
    assert values["code"] == "bench.profile()"
    assert values["progress"]["doing"] == "Profile"
    assert "waiting for data: raise num_workers" in values["progress"]["ended"]


def test_clicks_start_one_job_of_a_kind_and_those_that_wait_can_be_removed(tmp_path: Path) -> None:
    model = Held()
    with real(model, tmp_path) as bench:
        panel = Panel(bench)
        values = panel.canvas._picture.outbox._values
        model.gate.clear()
        for _ in range(3):
            panel.run.fit.click()
        assert len(bench.jobs) == 1
        wait_for(
            lambda: (
                panel.run.fit.text == "Training…"
                and (values.get("progress") or {}).get("status") == "running"
            )
        )
        panel.header.find_lr.click()
        panel.header.find_lr.click()
        fits = [bench.fit(), bench.fit()]
        wait_for(
            lambda: (
                [one["words"] for one in values["queue"]]
                == ["Learning-rate finder", "Training", "Training"]
            )
        )
        panel.canvas._heard(panel.canvas, {"type": "ask", "what": "stop", "job": fits[0].id}, [])
        assert fits[0].result().status == "stopped", "without its turn"
        wait_for(lambda: [one["job"] for one in values["queue"]] == [bench.jobs[1].id, fits[1].id])
        assert panel.dispatcher.drain(60)  # an earlier event may have brought this queue
        assert values["progress"]["status"] == "running"
        assert values["code"] == "bench.jobs[2].stop()"
        panel.canvas._heard(panel.canvas, {"type": "ask", "what": "stop_all"}, [])
        model.gate.set()
        assert [job.wait(120) and job.status for job in bench.jobs] == ["stopped"] * 4
        wait_for(lambda: values["queue"] == [] and panel.run.fit.text == "▶ Train")
        wait_for(lambda: values["code"] == "[job.stop() for job in bench.jobs]")


def collected(gone: weakref.ref[Any]) -> bool:
    gc.collect()
    return gone() is None


def test_a_closed_bench_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(_instances)
    bench = real(Held(), tmp_path)
    panel = Panel.of(bench)
    bench.fit().result()
    assert panel.dispatcher.drain(60)
    assert len(_instances) > len(before)
    bench.close()
    assert set(_instances) <= before, "layouts and styles are closed too"
    gone = weakref.ref(bench)
    del bench, panel
    wait_for(lambda: collected(gone))


def test_a_closed_panel_is_not_held_by_its_bench(tmp_path: Path) -> None:
    with real(Held(), tmp_path) as bench:
        panel = Panel.of(bench)
        panel.close()
        gone = weakref.ref(panel)
        del panel
        wait_for(lambda: collected(gone))


def test_a_resumed_run_is_drawn_whole_and_says_nothing_of_the_past(
    panel: Panel, bench: FakeBench
) -> None:
    """Started from code: the record of the other run comes first, in a burst, with what was said and changed there."""

    def going_on(job: FakeJob) -> Iterator[Event]:
        yield RunStarted(
            job.id, "fit", {**job.settings.model_dump(), "lr": 0.1}, "cpu", LAYERS, 400, 10
        )
        yield flush(0, 100, total=400)
        yield from (
            Message("said in the other run", "warning"),
            Changed(50, {"lr": 0.2}),
            Validated(100, 0, {"val_loss": 0.5}),
        )
        yield Logged(100, 0, {"train_acc": 0.5}, ("train_acc",))
        yield Saved(100, 1, "00000100", True, "val_loss", 0.5)
        yield Resumed(100, "0001-fit", "00000100", {"max_epochs": 10, "lr": 1e-3})
        yield from (Changed(100, {"lr": 1e-3}), Message("it continues with its own seed=3", "info"))
        yield flush(100, 50, 1, total=400)
        while not job.stopped:
            time.sleep(0.01)
        yield RunEnded("stopped", 150, 20.0)

    bench.set(lr=1e-3)
    job = bench._start("fit", going_on)

    def done() -> str:
        """As far as the panel has drawn it: an event is in its job's list before it is told."""
        return str(panel.canvas._picture.outbox._values.get("progress", {}).get("words"))

    wait_for(lambda: "150/400" in done())
    assert panel.dispatcher.drain(60)
    assert panel.dispatcher.errors == ()
    assert panel.notice.lines == [("info", "it continues with its own seed=3")]
    assert panel._in_run["lr"] == 1e-3
    assert not panel.run.apply.visible, "the run has what the controls say"
    late = Panel(bench)
    assert late.dispatcher.drain(60)
    for one in (panel, late):
        state = one.canvas._picture.outbox._values
        assert state["changes"] == [[50, "lr→0.2"], [100, "resumed, max_epochs→10, lr→1e-3"]]
        assert state["progress"]["words"][0] == "150/400"
        assert ["train_acc", "0.5"] in state["progress"]["values"]
    bench.set(lr=0.2)
    wait_for(lambda: panel.run.apply.visible)
    job.stop()
    assert job.wait(60)
    late.close()
