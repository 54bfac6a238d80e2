"""A folder that anybody may have written: whatever is in it, the root around it works."""

import contextlib
import copy
import json
import logging
import os
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st

import workbench as wb
from tests.attacks import poison
from tests.attacks.poison import BAD_LINES, DEEP, HOSTILE, NO_RECORDS, SCRIPT, bench
from tests.conftest import count
from tests.runs.records import read_record
from workbench.cli import main
from workbench.runs.checkpoints import list_checkpoints
from workbench.runs.folder.delete import prune
from workbench.runs.read import list_runs
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief
from workbench.runs.tables.run_list import RunList
from workbench.ui.canvas.runs.runs_page import Pages, View
from workbench.ui.canvas.runs.runs_table import fits

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here"),
]
# with SettingsError, FileNotFoundError, ExportError: what says what is wrong
OURS = (ValueError, OSError)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return poison.good(tmp_path_factory.mktemp("good"))


@pytest.fixture
def root(made, tmp_path):
    """A root with one good run."""
    shutil.copytree(made.parent.parent, tmp_path / "root")
    return tmp_path / "root"


def bad(root):
    good = next((root / "runs").glob("[!.]*"))
    return poison.another(good)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", NO_RECORDS)
def test_a_folder_that_is_no_record_is_skipped_and_named_once(root, name, caplog):
    (good,) = list_runs(root)
    path = bad(root)
    NO_RECORDS[name](path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert [run.id for run in list_runs(root)] == [good.id]
    named = [record for record in caplog.records if str(path) in record.getMessage()]
    assert len(named) == 1
    assert good.id in CliRunner().invoke(main, ["runs", "list", "--root", str(root)]).output
    assert prune(root, "fit", 5) == []
    with pytest.raises(OURS):
        Run.open(path)
    if path in fits(root):
        with pytest.raises(OURS):
            RunBrief.read(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        "created is beyond any float",
        "a pipe called run.json",
        "a pipe called metrics.jsonl",
        "deep JSON",
    ],
)
def test_a_root_with_such_a_folder_trains(root, name):
    NO_RECORDS[name](bad(root))
    with bench(root) as b:
        run = b.fit().result()
        assert run.status == "finished"
        assert len(b.runs) == 2
        assert len(b.compare(*[one.id for one in b.runs]).runs) == 2
        with pytest.raises(OURS):
            wb.attach("0007-fit", root)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_is_no_event_is_left_out(root, name):
    path = bad(root)
    before = len(read_record(path).events)
    BAD_LINES[name](path)
    found = read_record(path)
    assert found.skipped == 1
    assert before - 1 <= len(found.events) <= before
    assert {run.id for run in list_runs(root)} >= {"0007-fit"}
    look_at_all_of(path)


def table_of(brief):
    """What the panel's table of runs sends of a run: listed, grouped, and against its result."""
    pages, told = Pages(), []
    for view in (View(sort="lr"), View(group="tags"), View(group="optimizer", explain=True)):
        page = pages.page(view, [brief], (1, 0), {})
        told.append(json.dumps([page.head, page.parts, pages.explained(view)], allow_nan=False))
    return told


def look_at_all_of(path):
    """Everything that shows a run does so, or says in our words what is wrong."""
    run = Run.open(path)
    RunBrief.read(path)
    assert np.isfinite(run.history["step"]).all()
    for look in (
        lambda: run.health,
        lambda: run.metrics,
        lambda: run.validation,
        lambda: run.charts(),
        lambda: run.settings,
        lambda: repr(run),
    ):
        try:
            look()
        except OURS as error:
            assert type(error).__module__.startswith("workbench") or "run" in str(error)  # noqa: PT017
    assert table_of(RunBrief.read(path))
    list_checkpoints(path)


@pytest.mark.parametrize("value", [SCRIPT, "1e-3", True, [1], -5, {"a": 1}])
def test_a_setting_of_another_type_is_as_if_it_were_not_recorded(root, value):
    path = bad(root)
    started = next(line for line in poison.lines_of(path) if line["type"] == "RunStarted")
    poison.edited(
        path, "RunStarted", settings={**started["settings"], "lr": value, "warmup": value}
    )
    run = Run.open(path)
    assert run.settings.lr == 1e-3
    assert isinstance(run.health, tuple)
    look_at_all_of(path)


def test_checkpoints_of_somebody_s_making_are_none(root):
    path = bad(root)
    folder = list_checkpoints(path)[0].path
    whole = len(list_checkpoints(path))
    info = json.loads((folder / "info.json").read_text())
    for wrong in (
        {"step": None},
        {"step": "4"},
        {"epoch": 10**400},
        {"monitor": 7},
        {"value": SCRIPT},
        {"why": [], "format": 1},
    ):
        (folder / "info.json").write_text(json.dumps({**info, **wrong}))
        assert len(list_checkpoints(path)) == whole - 1
    (folder / "info.json").write_text(DEEP)
    assert len(list_checkpoints(path)) == whole - 1
    poison.a_pipe(folder, "info.json")
    assert len(list_checkpoints(path)) == whole - 1


def places(value, here=()):
    """The places within JSON data."""
    yield here
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        yield from places(item, (*here, key))


def put(data, place, value):
    for key in place[:-1]:
        data = data[key]
    data[place[-1]] = value


@st.composite
def poisoned(draw, lines):
    """The lines with up to three values replaced by hostile ones."""
    lines = json.loads(json.dumps(lines))
    for _ in range(draw(st.integers(1, 3))):
        line = draw(st.integers(0, len(lines) - 1))
        # or a list could get into itself
        value = copy.deepcopy(draw(st.sampled_from(HOSTILE) | st.integers() | st.text(max_size=5)))
        if isinstance(lines[line], dict):
            put(lines, (line, *draw(st.sampled_from([*places(lines[line])]))), value)
    return lines


def test_whatever_a_record_holds_it_is_read_or_refused(made, tmp_path):
    lines = poison.lines_of(made)
    header = json.loads((made / "run.json").read_text())
    path = tmp_path / "runs" / "0001-fit"
    path.mkdir(parents=True)

    @tried(max_examples=count(60, 1000), deadline=None, suppress_health_check=list(HealthCheck))
    @given(poisoned(lines), poisoned([header]) | st.just([header]))
    def check(lines, headers):
        poison.write(path, lines)
        (path / "run.json").write_text(json.dumps(headers[0]))
        runs = list_runs(tmp_path)
        if not runs:
            return
        run = Run.open(path)
        brief = RunBrief.read(path)
        assert table_of(brief)
        assert {len(values) for values in run.history.values()} == {len(run.history["step"])}
        for look in (
            lambda: run.health,
            lambda: run.metrics,
            lambda: run.charts(),
            lambda: run.settings,
            lambda: wb.compare(brief, brief),
        ):
            with contextlib.suppress(OURS):
                look()
        assert "<script" not in run._repr_html_() + RunList([run])._repr_html_()

    check()
