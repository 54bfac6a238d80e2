"""Which folders of records the server reads."""

from __future__ import annotations

import hashlib
import os

import pytest
from traitlets import TraitError

from workbench.server.app import WorkbenchServer
from workbench.server.roots import find_roots, why_no_runs


def made(folder):
    (folder / "runs").mkdir(parents=True)
    return folder


def names(top, depth=4, given=()):
    return [root.name for root in find_roots(top, depth, given)]


def test_roots_below_the_folder_of_notebooks_are_found(tmp_path):
    for name in (".", "a", "a/b", "a/b/c/d", "a/b/c/d/e", "node_modules/a", ".hidden/a", "a/.git"):
        made(tmp_path / name / ".workbench")
    (tmp_path / "empty" / ".workbench").mkdir(parents=True)
    assert names(tmp_path) == [".", "a", "a/b", "a/b/c/d"]
    assert names(tmp_path, 0) == ["."]
    assert names(tmp_path, 1) == [".", "a"]


def test_given_roots_come_first_and_may_be_elsewhere(tmp_path):
    top, elsewhere = tmp_path / "top", made(tmp_path / "elsewhere" / "records")
    made(top / "a" / ".workbench")
    made(top / "results")
    found = find_roots(top, 4, [str(elsewhere), "results", "a/.workbench"])
    assert [root.name for root in found] == [str(elsewhere), "results", "a"]
    assert [root.path for root in found] == [elsewhere, top / "results", top / "a" / ".workbench"]
    assert [root.key for root in found] == [
        hashlib.sha256(os.fsencode(root.path)).hexdigest()[:12] for root in found
    ]


def test_a_projects_folder_stands_for_its_records(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    made(tmp_path / "project" / ".workbench")
    (tmp_path / "top").mkdir()
    for given in ("~/project", "~/project/.workbench", str(tmp_path / "project")):
        assert [root.path for root in find_roots(tmp_path / "top", 0, [given])] == [
            tmp_path / "project" / ".workbench"
        ]
        assert why_no_runs(tmp_path / "top", given) == ""
        assert WorkbenchServer(roots=[given]).roots == [given]


def test_a_given_folder_without_runs_says_why(tmp_path):
    (tmp_path / "empty").mkdir()
    made(tmp_path / "theirs")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "runs").symlink_to(
        tmp_path / "theirs" / "runs", target_is_directory=True
    )
    for given, said in {
        "none": "there is no folder",
        "empty": "neither a folder runs nor .workbench/runs",
        "linked": "is a link. Give the folder",
    }.items():
        assert said in why_no_runs(tmp_path, given)
        assert str(tmp_path / given) in why_no_runs(tmp_path, given)
    assert why_no_runs(tmp_path, "theirs") == ""


def test_links_to_folders_are_not_searched(tmp_path):
    made(tmp_path / "theirs" / "a" / ".workbench")
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(tmp_path / "theirs", target_is_directory=True)
    (top / ".workbench").symlink_to(
        tmp_path / "theirs" / "a" / ".workbench", target_is_directory=True
    )
    assert names(top) == []


def test_a_relative_root_stays_within(tmp_path):
    with pytest.raises(
        TraitError, match=r"roots: '\.\./other' leads out .* Give the absolute path"
    ):
        WorkbenchServer(roots=["../other"])
    with pytest.raises(TraitError, match="search_depth"):
        WorkbenchServer(search_depth=-1)
    assert WorkbenchServer(roots=["results", "/data"]).roots == ["results", "/data"]


class TestConfigured:
    @pytest.fixture
    def jp_server_config(self, jp_server_config, tmp_path):
        return {
            **jp_server_config,
            "WorkbenchServer": {"roots": [str(tmp_path / "elsewhere")], "search_depth": 1},
        }

    async def test_the_configuration_is_used(self, api, record, tmp_path, jp_root_dir):
        record("0001-fit", tmp_path / "elsewhere", created=1.0).steps()
        record("0001-fit", jp_root_dir / "a" / ".workbench", created=2.0).steps()
        record("0001-fit", jp_root_dir / "a" / "b" / ".workbench").steps()
        page = await api.page()
        roots = {root["name"]: root["key"] for root in page["roots"]}
        assert set(roots) == {".", "a", str(tmp_path / "elsewhere")}
        assert [row["root"] for row in page["rows"]] == [
            roots["a"],
            roots[str(tmp_path / "elsewhere")],
        ]
        assert len(await api.rows(root=roots["a"])) == 1


class TestWrong:
    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        return {**jp_server_config, "WorkbenchServer": {"roots": ["nowhere"]}}

    async def test_the_log_names_a_root_that_is_not_there(self, api, caplog, jp_root_dir):
        said = f"WorkbenchServer.roots: 'nowhere' is not read, since there is no folder {jp_root_dir / 'nowhere'}. Give an existing folder"
        assert any(said in one.getMessage() for one in caplog.get_records("setup"))
        assert await api.rows() == []


async def test_a_root_that_is_made_later_is_found(api, record, jp_root_dir):
    events = await api.socket("api/events")
    await events.read()
    record("0001-fit", jp_root_dir / "new" / "project" / ".workbench").steps()
    began = (await events.until(lambda one: one["type"] == "began"))[-1]
    assert began["row"]["run"] == "0001-fit"
    shown = {root["key"]: root["name"] for root in (await api.page())["roots"]}
    assert shown[began["row"]["root"]] == "new/project"
