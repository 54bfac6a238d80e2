"""What tests of scripts share: processes that have torch imported and no workbench, which fork for each script."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.export.export_running import Runner, bare
from tests.warm import Warm
from workbench.bench.workbench import Workbench
from workbench.export.errors import ExportError


def equipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with a log of the losses and comparisons with the run where the script can have them."""

    @functools.wraps(function)
    def call(bench: Workbench, *args: Any, **options: Any) -> Any:
        if "checks" not in options and "log_file" not in options:
            with contextlib.suppress(ExportError):
                return function(bench, *args, checks=True, log_file=True, **options)
        return function(bench, *args, **options)

    return call


@pytest.fixture(scope="module", autouse=True)
def comparable_scripts() -> Iterator[None]:
    """Scripts have a log of their losses and comparisons with the run, unless a test says otherwise.
    Tests of other folders, which the same process may run, have none.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("export", "script"):
            patch.setattr(Workbench, name, equipped(getattr(Workbench, name)))
        yield


@pytest.fixture(scope="session")
def without() -> Iterator[Warm]:
    made = bare()
    yield made
    made.close()


@pytest.fixture(scope="session")
def with_lightning() -> Iterator[Warm]:
    """It has imported Lightning too, with torchmetrics, and scikit-learn."""
    made = bare("lightning.pytorch.demos.boring_classes", "sklearn.metrics")
    yield made
    made.close()


@pytest.fixture(scope="module")
def runner(without: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(without, tmp_path_factory.mktemp("elsewhere"))
