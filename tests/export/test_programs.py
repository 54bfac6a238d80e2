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

pytestmark = [
    pytest.mark.usefixtures("one_thread"), pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*are in no optimizer"),
]  # fmt: skip
MYPY = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports"]
OF_USERS = ["--disable-error-code=no-redef", "--disable-error-code=assignment"]
"""Classes defined twice, and attributes of another type than the base class's, are the user's."""

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
    with make_bench(
        tmp_path, arguments if "max_" in arguments else f"{arguments}, max_epochs=2", *code
    ) as bench:
        run = bench.fit().result()
        script = bench.export(tmp_path / "out" / "train.py")
        found, error, _ = api.run(
            [
                *MYPY,
                *OF_USERS,
                f"--cache-dir={tmp_path_factory.getbasetemp() / 'mypy'}",
                str(script),
            ]
        )
        assert found.startswith("Success"), found + error
        second = run.epochs > 1 and "--resume is not possible" not in script.read_text()
        check(
            bench,
            run,
            runner.run_resumed(script, "(output / 'checkpoint.pt').exists()")
            if second
            else runner.run(script),
        )
