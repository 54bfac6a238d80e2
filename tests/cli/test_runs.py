"""The command `workbench`: what it prints, what it writes and deletes, and which exit codes it ends with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.runs.tables.test_brief import events, recorded
from workbench._version import __version__
from workbench.cli import main
from workbench.commands import Pause, Resume, Stop
from workbench.events import Changed, Resumed, RunEnded, RunStarted, StepsDone, Validated, pack
from workbench.runs.folder import alive, control
from workbench.runs.folder.annotations import annotate
from workbench.runs.store import RunFolder


def run(root: Path | None, *arguments: str, answer: str | None = None) -> Result:
    rooted = [] if root is None else ["--root", str(root)]
    return CliRunner().invoke(main, ["runs", *arguments, *rooted], input=answer)


def told(root: Path, *arguments: str) -> list[str]:
    done = run(root, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def data(root: Path, *arguments: str) -> Any:
    return json.loads("\n".join(told(root, *arguments, "--json")))


def refused(root: Path, *arguments: str) -> str:
    done = run(root, *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    return done.stderr


def fit(root: Path, number: int, kind: str = "fit", **header: Any) -> Path:
    id = f"{number:04d}-{kind}"
    first, *others = events(200, id=id, lr=0.1)
    assert isinstance(first, RunStarted)
    return recorded(
        root, [replace(first, kind=kind), *others], id, kind=kind, created=float(number), **header
    )


def resumed(root: Path, *checkpoints: Mapping[str, Any]) -> None:
    with RunFolder.create(root, "0002-fit", {"kind": "fit"}) as folder:
        folder.append(RunStarted("0002-fit", "fit", {"lr": 0.1, "batch_size": 32}, "cpu"))
        folder.append(StepsDone(0, 1, 2, 0, 1.0, {"loss": pack([2, 1]), "lr": pack([0.1, 0.1])}))
        folder.append(Resumed(2, "0001-fit", "00000002", {"max_epochs": 5}))
        folder.append(Changed(2, {"lr": 0.01}))
        folder.append(RunEnded("failed", 2, 1.0, "Traceback:\n  line\nValueError: no"))
        for info in checkpoints:
            path = folder.checkpoints / (f"{info['step']:08d}" + "-end" * info["end"])
            path.mkdir()
            usual = {
                "epoch": 1,
                "monitor": None,
                "value": None,
                "mode": "min",
                "resumable": True,
                "why": None,
                "format": 1,
            }
            (path / "info.json").write_text(json.dumps({**usual, **info}))


# -- the command itself


def test_it_says_its_version_and_helps_without_torch(tmp_path: Path) -> None:
    """As a shell runs it: in a process of its own."""
    code = "import sys; from workbench.cli import main; main(sys.argv[1:], standalone_mode=False); print([m for m in ('torch', 'numpy') if m in sys.modules])"
    for arguments, words in (
        (["--help"], "Exit codes:"),
        (["--version"], f"workbench {__version__}"),
        (["runs", "prune", "-h"], "--dry-run"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert words in done.stdout
        assert done.stdout.splitlines()[-1] == "[]"
    wrong = subprocess.run(
        [sys.executable, "-m", "workbench", "runs", "lsit"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert wrong.returncode == 2
    assert "No such command 'lsit'" in wrong.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_code_for_the_shell(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert f"_WORKBENCH_COMPLETE={shell}_complete" in done.stdout


def test_ids_are_completed(tmp_path: Path) -> None:
    for number in (1, 12, 13):
        fit(tmp_path, number)
    (tmp_path / "runs" / "0014-fit;id").mkdir()  # a shell would run it
    recorded(tmp_path, events(20), "0015-fit").rename(tmp_path / "runs" / "0015-$(id)")
    asked = {
        "_WORKBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": f"workbench runs show --root {tmp_path} 001",
        "COMP_CWORD": "5",
    }
    done = CliRunner().invoke(main, [], prog_name="workbench", env=asked)
    assert done.stdout.split() == ["plain,0012-fit", "plain,0013-fit"]


def test_the_demo_without_scikit_learn_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # as if it were not installed
    done = CliRunner().invoke(main, ["demo", "--output", str(tmp_path)])
    assert done.exit_code == 1
    assert "pip install 'tuning-workbench[demo]'" in done.stderr


# -- which run


def test_a_number_means_the_run_with_it(tmp_path: Path) -> None:
    fit(tmp_path, 12)
    fit(tmp_path, 120)
    for given in ("12", "0012", "0012-fit"):
        assert told(tmp_path, "show", given)[0] == "0012-fit: fit finished"


def test_an_unknown_run_is_an_error_that_names_those_near(tmp_path: Path) -> None:
    for number in range(1, 9):
        fit(tmp_path, number)
    assert "no run '99' in" in (text := refused(tmp_path, "show", "99"))
    assert text.rstrip().endswith("Near it: 0004-fit, 0005-fit, 0006-fit, 0007-fit, 0008-fit.")
    assert "Near it: 0001-fit, 0002-fit, 0003-fit, 0004-fit, 0005-fit." in refused(
        tmp_path, "show", "0003-fti"
    )
    assert "0008-fit" in refused(tmp_path, "show", "nonsense")
    assert "no run '../x'" in refused(tmp_path, "delete", "../x")


def test_a_number_of_two_runs_is_ambiguous(tmp_path: Path) -> None:
    fit(tmp_path, 3)
    fit(tmp_path, 3, "find_lr")  # copied there by hand: the workbench gives a number once
    assert "3 is the number of several runs" in (text := refused(tmp_path, "delete", "3"))
    assert "0003-find_lr, 0003-fit. Give the whole id." in text
    assert len(data(tmp_path, "list")) == 2


def test_a_root_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty/runs").mkdir(parents=True)
    fit(tmp_path / "home/.workbench", 1)
    for command in (["list"], ["show", "1"], ["prune", "--keep", "3"], ["export", "1"]):
        assert "There is no folder" in refused(tmp_path / "typo", *command)
        assert "is not a folder" in refused(tmp_path / "file", *command)
        assert f"Is it --root {tmp_path}/home/.workbench?" in refused(tmp_path / "home", *command)
        assert f"Is it --root {tmp_path}/home/.workbench?" in refused(
            tmp_path / "home/.workbench/runs", *command
        )
        assert f"Is it --root {tmp_path}/home/.workbench?" in refused(
            tmp_path / "home/.workbench/runs/0001-fit", *command
        )
        assert "has no folder runs/" in refused(tmp_path, *command)
    assert "No runs are recorded in" in refused(tmp_path / "empty", "list")
    assert "holds no runs" in refused(tmp_path / "empty", "show", "1")
    assert not (tmp_path / "typo").exists()


# -- list, show, compare


def test_list_has_a_line_a_run(tmp_path: Path) -> None:
    annotate(
        fit(tmp_path, 1), name="baseline", notes="slow\nbut sure", tags=["sgd", "long"], pinned=True
    )
    fit(tmp_path, 2)
    head, first, second = told(tmp_path, "list")
    assert head.split()[:4] == ["run", "status", "updates", "time"]
    bars = "█▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁"
    assert (
        first.split()
        == f"0001-fit finished, average behind 200 20 s {bars} val_loss 0.25 pinned baseline #sgd #long".split()
    )
    assert second.endswith("val_loss 0.25")
    found = data(tmp_path, "list")
    assert [one["id"] for one in found] == ["0001-fit", "0002-fit"]
    assert found[0]["tags"] == ["sgd", "long"]
    assert found[0]["metrics"] == {"val_loss": 0.25}


def test_show_has_results_settings_and_annotations(tmp_path: Path) -> None:
    *before, end = events(200, lr=0.1)
    path = recorded(tmp_path, [*before, Validated(200, 3, {"val_loss": 0.25}), end])
    annotate(path, notes="slow\nbut sure", tags=["sgd", "long"])
    lines = [" ".join(line.split()) for line in told(tmp_path, "show", "1")]
    assert {
        "tags sgd, long",
        "model Net, 12 parameters",
        "val_loss 0.25 (best 0.01571)",
        "setting lr = 0.1",
    } <= {*lines}
    assert lines[lines.index("notes slow") + 1] == "but sure"
    assert not [line for line in lines if "batch_size" in line]
    found = data(tmp_path, "show", "1")
    assert found["settings"]["batch_size"] == 32
    assert found["best"]["val_loss"] == pytest.approx(3 / 191)


def test_show_says_where_a_run_came_from_what_changed_and_why_it_failed(tmp_path: Path) -> None:
    resumed(
        tmp_path,
        {"step": 1, "end": False, "monitor": "val_acc", "value": 0.75, "mode": "max"},
        {"step": 2, "end": False, "monitor": "val_acc", "value": 0.5, "mode": "max"},
        {
            "step": 2,
            "end": True,
            "epoch": 2,
            "resumable": False,
            "why": "the state of MyScheduler holds a Foo",
        },
    )
    lines = told(tmp_path, "show", "2")
    assert [
        line for line in lines if line.startswith(("  resumed", "  changed", "  checkpoint"))
    ] == [
        "  changed at update 2, lr=0.01",
        "  resumed at update 2 from 0001-fit@00000002, max_epochs=5",
        "  checkpoint 00000001      epoch 1  val_acc 0.75  best",
        "  checkpoint 00000002      epoch 1  val_acc 0.5",
        "  checkpoint 00000002-end  epoch 2  weights alone: the state of MyScheduler holds a Foo",
    ]
    assert lines[0] == "0002-fit: fit failed"
    assert lines[-1] == "  ValueError: no"


def test_a_search_is_shown_too(tmp_path: Path) -> None:
    fit(tmp_path, 1, "find_lr")
    assert told(tmp_path, "show", "1")[0] == "0001-find_lr: find_lr finished"
    assert "only fits can be compared" in refused(
        tmp_path, "compare", "1", str(fit(tmp_path, 2).name)
    )


def test_watch_of_a_run_that_has_ended_ends_too(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    assert told(tmp_path, "watch", "1") == ["0001-fit: finished"]
    assert "0001-fit" in refused(tmp_path, "watch", "7")


def test_watch_of_a_run_that_failed_or_whose_process_died_fails(tmp_path: Path) -> None:
    resumed(tmp_path)
    shown = run(tmp_path, "watch", "2")
    assert shown.exit_code == 1
    assert shown.stderr.splitlines()[-1] == "Error: 0002-fit failed: Traceback: line ValueError: no"
    with RunFolder.create(
        tmp_path, "0003-fit", {"kind": "fit", "pid": 1, "pid_started": -1.0}
    ) as folder:
        folder.append(RunStarted("0003-fit", "fit", {}, "cpu"))
    (folder.path / "output.log").write_text("\x1b[2Jgone\n")
    shown = run(tmp_path, "watch", "3")
    assert shown.exit_code == 1
    assert "ended without ending the run" in shown.stderr.splitlines()[-1]
    assert "\x1b" not in shown.output


def test_stop_pause_and_resume_reach_a_run_through_its_folder(tmp_path: Path) -> None:
    for id, kind in (("0001-fit", "fit"), ("0002-find_lr", "find_lr")):
        RunFolder.create(tmp_path, id, {"kind": kind, "takes_commands": True}).close()
    # of the version before
    RunFolder.create(tmp_path, "0003-fit", {"kind": "fit", "launched": True}).close()
    told(tmp_path, "stop", "3")
    assert list(control.take(tmp_path / "runs" / "0003-fit")) == [Stop()]
    for name in ("pause", "resume", "stop"):
        assert told(tmp_path, name, "1") == [f"0001-fit is asked to {name}."]
    assert list(control.take(tmp_path / "runs" / "0001-fit")) == [Pause(), Resume(), Stop()]
    assert "pause() is for fits; a find_lr job can only be stopped." in refused(
        tmp_path, "pause", "2"
    )
    told(tmp_path, "stop", "2")
    assert list(control.take(tmp_path / "runs" / "0002-find_lr")) == [Stop()]


def test_a_run_that_would_not_hear_a_command_is_not_asked(tmp_path: Path) -> None:
    fit(tmp_path, 1, takes_commands=True)
    RunFolder.create(tmp_path, "0002-fit", {"kind": "fit", "host": "node7", "pid": 123}).close()
    RunFolder.create(
        tmp_path, "0003-fit", {"kind": "fit", "takes_commands": True, "pid": 1, "pid_started": -1.0}
    ).close()
    assert "stop() comes too late: fit 0001-fit has finished." in refused(tmp_path, "stop", "1")
    assert "Ask its own job, in process 123 on node7." in refused(tmp_path, "stop", "2")
    assert "stop() comes too late: fit 0003-fit has failed." in refused(tmp_path, "stop", "3")
    assert "There is no run '4'" in refused(tmp_path, "stop", "4")
    assert not [*tmp_path.glob("runs/*/control/*")]


def test_compare_has_the_settings_that_differ(tmp_path: Path) -> None:
    recorded(tmp_path, events(200, id="0001-fit", lr=0.1), "0001-fit")
    recorded(tmp_path, events(200, id="0002-fit", lr=0.01), "0002-fit")
    rows = {line[:14].strip(): line.split()[-2:] for line in told(tmp_path, "compare", "1", "2")}
    assert rows["lr"] == ["0.1", "0.01"]
    assert rows["best val_loss"] == ["0.01571", "0.01571"]
    found = data(tmp_path, "compare", "1", "2")
    assert [one["settings"] for one in found] == [{"lr": 0.1}, {"lr": 0.01}]
    assert found[0]["last"]["val_loss"] == 0.25
    assert "two or more" in refused(tmp_path, "compare", "1")
    assert "0001-fit is given twice" in refused(tmp_path, "compare", "1", "0001-fit")


# -- export


def test_export_prints_the_history(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    head, *rows = told(tmp_path, "export", "1")
    assert head.startswith("step,epoch,loss")
    assert len(rows) == 200, "a row an update, of which the last has the validation after it"


def test_export_writes_what_the_ending_says(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    for name, beginning in (
        ("a.csv", b"step,"),
        ("a.json", b"{"),
        ("a.png", b"\x89PNG"),
        ("a.svg", b"<?xml"),
        ("a.html", b"<"),
    ):
        file = tmp_path / name
        assert told(tmp_path, "export", "1", str(file)) == [f"{file} is written."]
        assert file.read_bytes().startswith(beginning)
    written = json.loads((tmp_path / "a.json").read_text())
    assert len(written["history"]["loss"]) == 200
    assert len(written["validation"]["val_loss"]) == 2
    assert written["settings"]["lr"] == 0.1


def test_export_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    assert "bench.export('train.py', '0001-fit')" in refused(
        tmp_path, "export", "1", str(tmp_path / "train.py")
    )
    assert "give .csv, .json, .html" in refused(tmp_path, "export", "1", str(tmp_path / "a.txt"))
    kept = tmp_path / "a.csv"
    kept.write_text("mine")
    assert "give another name, or --force" in refused(tmp_path, "export", "1", str(kept))
    assert kept.read_text() == "mine"
    told(tmp_path, "export", "1", str(kept), "--force")
    assert kept.read_text().startswith("step,")


# -- delete and prune


def test_delete_finds_all_before_it_deletes_one(tmp_path: Path) -> None:
    paths = [fit(tmp_path, number) for number in (1, 2, 3)]
    refused(tmp_path, "delete", "1", "9")
    assert all(path.exists() for path in paths)
    assert told(tmp_path, "delete", "1", "0001-fit", "2") == [
        "0001-fit is deleted.",
        "0002-fit is deleted.",
    ]
    assert [path.exists() for path in paths] == [False, False, True]


def test_what_was_deleted_before_an_error_is_printed(tmp_path: Path) -> None:
    *_, running = some_runs(tmp_path)
    done = run(tmp_path, "delete", "2", "7", "3", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"deleted": ["0002-fit", "0003-fit"]}
    assert "0007-fit is not over" in done.stderr
    assert running.exists()


def test_nothing_is_deleted_through_a_link(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    path = fit(theirs, 1)
    mine.mkdir()
    (mine / "runs").symlink_to(theirs / "runs")
    assert "is a link to" in refused(mine, "delete", "1")
    assert "is a link to" in refused(mine, "prune", "--keep", "0", "--yes")
    assert path.exists()


def some_runs(root: Path) -> list[Path]:
    """Four fits that ended, of which the first is pinned, two searches, and one fit that runs in this process."""
    paths = [
        *(fit(root, number) for number in range(1, 5)),
        *(fit(root, number, "find_lr") for number in (5, 6)),
    ]
    annotate(paths[0], pinned=True)
    with RunFolder.create(
        root, "0007-fit", {"kind": "fit", "created": 0.0, **alive.identity()}
    ) as folder:
        folder.append(RunStarted("0007-fit", "fit", {}, "cpu"))
    return [*paths, folder.path]


def test_prune_keeps_the_newest_of_each_kind_and_what_is_pinned_or_runs(tmp_path: Path) -> None:
    paths = some_runs(tmp_path)
    lines = told(tmp_path, "prune", "--keep", "1", "--dry-run")
    assert [line.split()[0] for line in lines[1:-1]] == ["0002-fit", "0003-fit", "0005-find_lr"]
    assert lines[-1] == "3 runs would be deleted."
    assert all(path.exists() for path in paths)
    assert (
        told(tmp_path, "prune", "--keep", "1", "--kind", "find_lr", "--yes")[-1] == "1 run deleted."
    )
    assert data(tmp_path, "prune", "--keep", "0", "--yes") == {
        "deleted": ["0002-fit", "0003-fit", "0004-fit", "0006-find_lr"]
    }
    assert [path.exists() for path in paths] == [True, False, False, False, False, False, True]
    assert told(tmp_path, "prune", "--keep", "0") == ["There is nothing to delete."]
    assert "'fitt'; there are: fit" in refused(tmp_path, "prune", "--keep", "0", "--kind", "fitt")


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_prune_asks(tmp_path: Path, answer: str) -> None:
    paths = some_runs(tmp_path)
    done = run(tmp_path, "prune", "--keep", "1", answer=answer)
    assert done.exit_code == 1
    assert "Delete 3 runs for good?" in done.stderr
    assert "nothing is deleted" in done.stderr
    assert all(path.exists() for path in paths)
    assert run(tmp_path, "prune", "--keep", "1", answer="y\n").exit_code == 0
    assert sum(path.exists() for path in paths) == 4


def test_a_wrong_number_to_keep_is_wrong_usage(tmp_path: Path) -> None:
    assert run(tmp_path, "prune", "--keep", "-1").exit_code == 2
    assert run(tmp_path, "prune").exit_code == 2
