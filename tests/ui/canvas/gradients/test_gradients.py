"""Gradients on the canvas: rows that are modules, layers with a line, what was first not finite, ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.instruments.test_layer_groups import BLOCK, a_stack
from tests.ui.canvas.test_widget import Screen, started
from tests.ui.fakes import FakeBench
from workbench.events import Called, Changed, Floats, RunEnded, SettingsSet, StepsDone, pack
from workbench.settings import Settings
from workbench.ui.canvas.gradients import layers as of_layers
from workbench.ui.canvas.transport.messages import LIMIT
from workbench.ui.panel import Panel


def norms_of(step: int, table: Floats | np.ndarray[Any, Any], **columns: Any) -> StepsDone:
    """A flush with these norms by layer; the total is their 2-norm."""
    count = len(table)
    total = np.sqrt((np.asarray(table, np.float64) ** 2).sum(axis=1))
    plain = {
        "loss": np.ones(count),
        "lr": np.ones(count),
        "grad_norm": total,
        "grad_norm_clipped": total,
        "layer_norms": table,
    }
    return StepsDone(
        step,
        1,
        count,
        0,
        float(step + count),
        {name: pack(np.asarray(v)) for name, v in {**plain, **columns}.items()},
    )


def ask(screen: Screen, what: str, **args: Any) -> None:
    screen.view._heard(screen.view, {"type": "ask", "what": what, **args}, [])
    screen.settle()


def state(screen: Screen) -> dict[str, Any]:
    screen.settle()
    return screen.mirrors[0].state


def names(told: list[list[Any]]) -> list[str]:
    return [name for name, _, _ in told]


def test_a_module_is_the_largest_of_its_layers_and_opens_from_the_first_update_on() -> None:
    screen, layers = Screen(), a_stack(16)
    table = np.random.default_rng(0).lognormal(size=(300, len(layers)))
    screen.draw(started(layers))
    for step in range(0, 300, 30):
        screen.draw(norms_of(step, table[step : step + 30]))
    block = next(row for row in state(screen)["map"]["rows"] if row[0] == "h.3")
    at = names(state(screen)["map"]["rows"]).index("h.3")
    np.testing.assert_allclose(
        screen.mirrors[0].rows("heat")[:, at], table[:, block[1] : block[2]].max(axis=1), rtol=1e-6
    )

    ask(screen, "open_group", first=block[1], end=block[2])
    shown = state(screen)["map"]
    assert names(shown["path"]) == ["h.3"]
    assert names(shown["rows"]) == [f"h.3.{part}" for part in BLOCK]
    np.testing.assert_allclose(
        screen.mirrors[0].rows("heat"), table[:, block[1] : block[2]], rtol=1e-6
    )
    screen.draw(norms_of(300, table[:5]))
    screen.settle()
    assert screen.mirrors[0].rows("heat").shape == (305, 6)
    ask(screen, "open_group", first=block[1], end=block[2])  # a second click on what has gone
    ask(screen, "close_group", depth=0)
    assert state(screen)["map"]["path"] == []
    assert screen.mirrors[0].rows("heat").shape == (305, 19)


def test_a_rerun_of_the_same_model_keeps_what_was_opened() -> None:
    screen, layers = Screen(), a_stack(16)
    screen.draw(started(layers), norms_of(0, np.ones((3, len(layers)))))
    screen.settle()
    ask(screen, "open_group", first=1, end=7)
    ask(screen, "pick_layer", first=2, end=3)
    screen.draw(started(layers))
    assert (names(state(screen)["map"]["path"]), [p["name"] for p in state(screen)["picks"]]) == (
        ["h.0"],
        ["h.0.ln.bias"],
    )
    screen.draw(started(a_stack(17)))
    assert (state(screen)["map"]["path"], state(screen)["picks"]) == ([], [])


def test_picked_layers_have_lines_with_shares_that_add_up() -> None:
    screen = Screen()
    screen.draw(started(("a", "b", "c")), norms_of(0, np.array([[1.0, 1, 1], [3, 4, 12]])))
    screen.settle()
    for place in (0, 2, 1):
        ask(screen, "pick_layer", first=place, end=place + 1)
    picks = state(screen)["picks"]
    assert [(p["name"], p["value"]) for p in picks] == [("a", 3), ("c", 12), ("b", 4)]
    assert [p["share"] for p in picks] == pytest.approx([9 / 169, 144 / 169, 16 / 169])
    np.testing.assert_array_equal(screen.mirrors[0].rows("picked"), [[1, 1, 1], [3, 12, 4]])
    ask(screen, "pick_layer", first=0, end=1)
    assert [(p["name"], p["stroke"]) for p in state(screen)["picks"]] == [("c", 1), ("b", 2)], (
        "the others keep their strokes"
    )


def test_of_six_picked_layers_the_first_has_gone() -> None:
    screen = Screen()
    screen.draw(started(tuple("abcdef")), norms_of(0, np.ones((2, 6))))
    screen.settle()
    for place in range(6):
        ask(screen, "pick_layer", first=place, end=place + 1)
    assert [(p["name"], p["stroke"]) for p in state(screen)["picks"]] == [
        *zip("bcde", range(1, 5), strict=True),
        ("f", 0),
    ]


def test_thousands_of_layers_stay_small() -> None:
    screen, layers = Screen(), a_stack(1500)
    screen.draw(started(layers))
    for step in range(0, 5000, 500):
        screen.draw(norms_of(step, np.full((500, len(layers)), 2.0)))
        screen.settle()
    assert state(screen)["map"]["merged"] == 3
    assert screen.mirrors[0].rows("heat").shape[1] <= 40
    assert np.all(screen.mirrors[0].rows("heat") == 2.0)
    assert max(screen.sent) <= LIMIT
    assert (
        screen.view._picture._gradients.layers._norms.rows(0, 1).shape[1] <= of_layers.MOST_LAYERS
    )


def test_where_it_was_first_not_finite_is_said_once() -> None:
    screen, nan = Screen(), np.nan
    screen.draw(started(("a", "b", "c")), norms_of(0, np.ones((5, 3))))
    assert state(screen)["broken"] is None
    screen.draw(norms_of(5, np.array([[1, 1, 1], [1, nan, np.inf]]), grad_norm=[1.7, nan]))
    screen.draw(norms_of(7, np.full((2, 3), nan), grad_norm=[nan, nan], loss=[nan, nan]))
    assert state(screen)["broken"] == {
        "step": 6,
        "place": 1,
        "words": "gradient not finite at update 6, first in b",
    }
    screen.draw(started(("a", "b", "c")), norms_of(0, np.ones((2, 3)), loss=[1, nan]))
    assert state(screen)["broken"] == {
        "step": 1,
        "place": None,
        "words": "loss not finite at update 1",
    }


def test_a_layer_without_a_gradient_is_not_where_it_began() -> None:
    screen, nan, inf = Screen(), np.nan, np.inf
    screen.draw(
        started(("frozen", "b", "c")),
        norms_of(0, np.array([[nan, 1, 1]] * 5), grad_norm=np.ones(5)),
    )
    screen.draw(
        norms_of(
            5, np.array([[nan, 1, 1], [nan, 1, inf], [nan, nan, inf]]), grad_norm=[1, inf, inf]
        )
    )
    assert state(screen)["broken"] == {
        "step": 6,
        "place": 2,
        "words": "gradient not finite at update 6, first in c",
    }
    np.testing.assert_array_equal(
        screen.mirrors[0].rows("heat")[5:], [[nan, 1, 1], [nan, 1, inf], [nan, inf, inf]]
    )
    screen.draw(
        started(("frozen", "b", "c")), norms_of(0, np.array([[nan, nan, inf]]), grad_norm=[inf])
    )
    assert state(screen)["broken"]["words"] == "gradient not finite at update 0, first in c", (
        "of the others nothing is known"
    )


def test_ratios_hold_until_the_next_measurement_and_no_longer() -> None:
    screen, nan = Screen(), np.nan
    ones = np.ones((4, 2))
    screen.draw(started(("a", "b"), track_update_ratio=True), norms_of(0, ones))
    ask(screen, "show_ratios", on=True)
    assert screen.mirrors[0].rows("heat").size == 0
    assert state(screen)["ratios"] == {
        "on": True,
        "words": "The first update ratios come with the next updates.",
    }
    screen.draw(
        norms_of(
            4, ones, update_ratios=np.array([[nan, nan], [1e-3, 2e-3], [nan, nan], [nan, 4e-3]])
        )
    )
    screen.draw(norms_of(8, ones), Changed(12, {"track_update_ratio": False}), norms_of(12, ones))
    screen.draw(
        Changed(16, {"track_update_ratio": True}),
        norms_of(
            16, ones, update_ratios=np.array([[nan, nan], [nan, nan], [5e-3, nan], [nan, nan]])
        ),
    )
    screen.settle()
    expected = [
        [nan, nan],
        [1e-3, 2e-3],
        [1e-3, 2e-3],
        *[[1e-3, 4e-3]] * 5,
        *[[nan, nan]] * 6,
        [5e-3, nan],
        [5e-3, nan],
    ]
    np.testing.assert_allclose(screen.mirrors[0].rows("heat"), expected, rtol=1e-6)
    assert screen.mirrors[0].tables["heat"].head == {
        "origin": 4,
        "width": 1,
        "every": 1,
        "view": state(screen)["map"]["view"],
    }
    ask(screen, "show_ratios", on=False)
    np.testing.assert_array_equal(screen.mirrors[0].rows("heat"), np.ones((20, 2)))


def test_what_measures_ratios_is_said() -> None:
    screen = Screen()
    screen.draw(started(("a", "b")), norms_of(0, np.ones((2, 2))))
    assert state(screen)["ratios"] == {
        "on": False,
        "words": "This run does not measure update ratios yet.",
    }
    screen.draw(Changed(2, {"track_update_ratio": True}))
    assert state(screen)["ratios"]["on"] is True
    assert state(screen)["changes"] == [], "it changes nothing that is drawn"
    screen.draw(
        RunEnded("finished", 2, 1.0),
        SettingsSet(Settings.make(track_update_ratio=True).model_dump()),
    )
    assert state(screen)["ratios"] == {"on": True, "words": "The next run measures update ratios."}


def test_a_view_that_opens_late_sees_what_was_opened() -> None:
    screen, layers = Screen(), a_stack(16)
    screen.draw(started(layers), norms_of(0, np.ones((50, len(layers)))))
    screen.settle()
    ask(screen, "open_group", first=1, end=7)
    ask(screen, "pick_layer", first=1, end=2)
    late = type(screen.mirrors[0])()
    screen.mirrors.append(late)
    screen.view._heard(screen.view, {"type": "ready"}, [])
    assert late.state == screen.mirrors[0].state
    for name in ("heat", "picked"):
        np.testing.assert_array_equal(late.rows(name), screen.mirrors[0].rows(name))


def test_what_is_asked_of_the_bench_is_a_line_of_code() -> None:
    bench = FakeBench()
    heard: list[Any] = []
    bench.subscribe(heard.append)
    panel = Panel.of(bench)
    panel.canvas._heard(panel.canvas, {"type": "ask", "what": "use_clip", "value": 1.2}, [])
    panel.canvas._heard(panel.canvas, {"type": "ask", "what": "measure_ratios", "on": True}, [])
    assert (bench.settings.gradient_clip_val, bench.settings.track_update_ratio) == (1.2, True)
    called = [event.code for event in heard if isinstance(event, Called)]
    assert called == ["bench.set(gradient_clip_val=1.2)", "bench.set(track_update_ratio=True)"]
    panel.close()
