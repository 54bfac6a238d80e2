"""What a record says in an output cell is text there, and never a tag."""

import json
import re
from pathlib import Path

import pytest

from tests.attacks import poison
from tests.attacks.poison import SCRIPT
from workbench.events import Message, RunEnded, RunStarted, StepsDone, Validated, pack, to_line
from workbench.plots.drawing import plotly
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief
from workbench.runs.tables.compare import compare
from workbench.runs.tables.render import html_table
from workbench.ui.canvas.widget import LiveView
from workbench.ui.static_output import StaticOutput

QUOTED = '"><img src=x onerror=alert(1)>'


def marked(status="failed"):
    """A run all of whose texts are tags."""
    norms = {"grad_norm": pack([1.0] * 3), "layer_norms": pack([1.0] * 6)}
    return [
        RunStarted(SCRIPT, "fit", {}, SCRIPT, (SCRIPT, QUOTED), 3, 1),
        StepsDone(
            0,
            1,
            3,
            0,
            1.0,
            {
                "loss": pack([1.0, 2.0, 3.0]),
                "lr": pack([0.1] * 3),
                SCRIPT: pack([1.0] * 3),
                **norms,
            },
            (SCRIPT,),
        ),
        Validated(3, 0, {SCRIPT: 1.0, QUOTED: 2.0}, (SCRIPT,)),
        Message(SCRIPT, "warning", 3),
        RunEnded(status, 3, 1.0, f"ValueError: {SCRIPT}", {SCRIPT: 1.0}),
    ]


def is_text(html):
    return "<script" not in html and "<img src=x" not in html


def test_a_result_is_text():
    run = Run.from_events(marked())
    assert is_text(run._repr_html_())
    assert "&lt;script&gt;" in run._repr_html_()
    assert is_text(
        compare(RunBrief.of(run), RunBrief.of(Run.from_events(marked("finished"))))._repr_html_()
    )
    assert is_text(html_table(SCRIPT, [[SCRIPT], [QUOTED]]))


def test_the_picture_that_stays_is_text():
    still = StaticOutput("name")
    still.over([RunStarted("a", QUOTED, {}, "cpu"), *marked()[1:]], print)
    still._runs["fit"] = Run.from_events(marked())
    still._runs["fit"].__dict__["kind"] = QUOTED
    assert is_text(still.bundles()[0]["text/html"])


def test_the_front_ends_make_no_markup_of_texts():
    """Notices, names and errors become text nodes; the one exception is the icon of a button."""
    files = Path(__file__).parents[2].glob("extensions/*/src/**/*.ts")
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write")
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    assert len(lines) > 1000
    (icon,) = filter(markup.search, lines)
    assert "<svg" in icon


def test_the_canvas_holds_text():
    view = LiveView()
    for event in marked():
        view.draw(event)


@pytest.mark.parametrize("what", [None, "grad_norm", SCRIPT])
def test_a_figure_has_text(what):
    figure = plotly.figure(Run.from_events(marked("finished")).charts(what))
    texts = [value for _, value in leaves(json.loads(figure.to_json())) if isinstance(value, str)]
    assert any("&lt;script&gt;" in text for text in texts)
    assert all(map(is_text, texts))


def leaves(data, name=""):
    """The values within JSON data, and the keys they stand under."""
    inner = (
        data.items()
        if isinstance(data, dict)
        else ((name, item) for item in data)
        if isinstance(data, list)
        else ()
    )
    if isinstance(data, dict | list):
        for key, item in inner:
            yield from leaves(item, key)
    else:
        yield name, data


def test_a_status_that_is_no_status_never_arrives(tmp_path):
    folder = tmp_path / "runs" / "0001-fit"
    folder.mkdir(parents=True)
    poison.raw_header(folder, '{"kind": "fit"}')
    end = json.loads(to_line(RunEnded("finished", 3, 1.0)))
    poison.write(folder, [{**end, "status": QUOTED}])
    assert Run.open(folder).status == "queued"
