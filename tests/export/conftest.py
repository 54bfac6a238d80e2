"""What tests of scripts share: processes that have torch imported and no workbench, which fork for each script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.export.export_running import Runner, bare
from tests.warm import Warm
from workbench.bench.workbench import Workbench


@pytest.fixture(scope="session", autouse=True)
def comparable_scripts() -> Iterator[None]:
    """Scripts have a log of their losses and comparisons with the run, unless a test says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        for function in (Workbench.export, Workbench.script):
            for name in ("checks", "log_file"):
                patch.setitem(function.__kwdefaults__, name, True)
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
