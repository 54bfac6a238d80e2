"""Every program of the tests of scripts: killed in its second epoch and resumed it ends as the run did, and mypy finds no error."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from tests.export.export_running import PRELUDE, Runner, check, make_bench
from tests.export.program import (
    test_script_lightning,
    test_script_optimizers,
    test_script_techniques,
)
from tests.export.script import test_script, test_script_definitions
from workbench.engine.session import Session
from workbench.export.errors import NotResumable

pytestmark = [
    pytest.mark.usefixtures("one_thread"), pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*are in no optimizer"),
]  # fmt: skip
MYPY = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports"]
OF_USERS = ["--disable-error-code=no-redef", "--disable-error-code=assignment"]
"""Classes defined twice, and attributes of another type than the base class's, are the user's."""
IN_SECOND_EPOCH = "(config.output / 'checkpoint.pt').exists()"

TABLES = (
    test_script,
    test_script_definitions,
    test_script_techniques,
    test_script_optimizers,
    test_script_lightning,
)
PROGRAMS = {
    (table.__name__.rpartition(".")[2], case): (*program, getattr(table, "PRELUDE", PRELUDE))
    for table in TABLES
    for case, program in table.CASES.items()
}


@pytest.mark.parametrize("name", PROGRAMS, ids=" ".join)
def test_it_continues(
    name: tuple[str, str],
    runner: Runner,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments, *code = PROGRAMS[name]
    # the clock goes by updates
    monkeypatch.setattr(Session, "seconds", property(lambda session: session.state.step / 77))
    if "max_" not in arguments:
        arguments += ", max_epochs=2"
    with make_bench(tmp_path, arguments, *code) as bench:
        run = bench.fit().result()
        try:
            script = bench.export(tmp_path / "out" / "train.py", resume=True)
        except NotResumable:  # its own table's test runs it
            script = bench.export(tmp_path / "out" / "train.py")
        else:
            if run.epochs > 1:
                check(bench, run, runner.run_resumed(script, IN_SECOND_EPOCH))
    cache = tmp_path_factory.getbasetemp() / "mypy"
    found, error, _ = api.run([*MYPY, *OF_USERS, f"--cache-dir={cache}", str(script)])
    assert found.startswith("Success"), found + error
