"""Tuning Workbench: a learning rate, a batch size and a clip value you can trust, and a script that
repeats the run.

Importing starts nothing and takes no device; the names are handed out when they are first used, so
that `workbench.runs` and the other light parts never load torch.
"""

import importlib as _importlib
import os as _os
import typing as _typing
import warnings as _warnings

from workbench._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from workbench.bench import Workbench as Workbench
    from workbench.bench.rerun import rerun as rerun
    from workbench.bench.study import Study as Study
    from workbench.export.errors import ExportError as ExportError
    from workbench.launch.attached.attach import attach as attach
    from workbench.runs.run import Run as Run
    from workbench.runs.tables.compare import Comparison as Comparison
    from workbench.runs.tables.compare import compare as compare
    from workbench.settings import Settings as Settings
    from workbench.settings import SettingsError as SettingsError
    from workbench.task.batch_transforms import cutmix as cutmix
    from workbench.task.batch_transforms import label_smoothing as label_smoothing
    from workbench.task.batch_transforms import mixup as mixup
    from workbench.task.batch_transforms import one_of as one_of
    from workbench.task.data.datasets import batches as batches
    from workbench.task.errors import TaskError as TaskError
    from workbench.task.metrics.over_epoch import over_epoch as over_epoch
    from workbench.task.optim.group_rules import freeze as freeze
    from workbench.task.optim.group_rules import group as group
    from workbench.task.optim.group_rules import layer_decay as layer_decay
    from workbench.task.optim.mup import mup as mup
    from workbench.task.protocol import Schedule as Schedule
    from workbench.task.protocol import Task as Task
    from workbench.tuners.batch_size.batch_size_finder import BatchSizes as BatchSizes
    from workbench.tuners.learning_rate.lr_finder import LRCurve as LRCurve
    from workbench.values import EarlyStopping as EarlyStopping

_HOMES = {
    "Workbench": "workbench.bench",
    "ExportError": "workbench.export.errors",
    "attach": "workbench.launch.attached.attach",
    "Comparison": "workbench.runs.tables.compare",
    "compare": "workbench.runs.tables.compare",
    "Run": "workbench.runs.run",
    "Settings": "workbench.settings",
    "SettingsError": "workbench.settings",
    "Study": "workbench.bench.study",
    "rerun": "workbench.bench.rerun",
    "cutmix": "workbench.task.batch_transforms",
    "label_smoothing": "workbench.task.batch_transforms",
    "mixup": "workbench.task.batch_transforms",
    "one_of": "workbench.task.batch_transforms",
    "over_epoch": "workbench.task.metrics.over_epoch",
    "freeze": "workbench.task.optim.group_rules",
    "group": "workbench.task.optim.group_rules",
    "layer_decay": "workbench.task.optim.group_rules",
    "mup": "workbench.task.optim.mup",
    "Schedule": "workbench.task.protocol",
    "Task": "workbench.task.protocol",
    "TaskError": "workbench.task.errors",
    "EarlyStopping": "workbench.values",
    "batches": "workbench.task.data.datasets",
    "BatchSizes": "workbench.tuners.batch_size.batch_size_finder",
    "LRCurve": "workbench.tuners.learning_rate.lr_finder",
}
__all__ = [
    "BatchSizes",
    "Comparison",
    "EarlyStopping",
    "ExportError",
    "LRCurve",
    "Run",
    "Schedule",
    "Settings",
    "SettingsError",
    "Study",
    "Task",
    "TaskError",
    "Workbench",
    "__version__",
    "attach",
    "batches",
    "compare",
    "cutmix",
    "freeze",
    "group",
    "label_smoothing",
    "layer_decay",
    "mixup",
    "mup",
    "one_of",
    "over_epoch",
    "rerun",
]


def _warn_of_namesake(folder: str) -> None:
    """Warn if the distribution `workbench`, whose package has the name of this one, is installed
    into the same folder.
    """
    try:
        namesakes = [
            name
            for name in _os.listdir(folder)
            if name.startswith("workbench-") and name.endswith(".dist-info")
        ]
    except OSError:  # it is no folder (a zip file), or cannot be listed
        return
    if namesakes:
        _warnings.warn(
            f"two distributions are installed as the package `workbench` in {folder}:"
            f" tuning-workbench and {namesakes[0].removesuffix('.dist-info')}. They overwrite each"
            " other's files, so neither can be relied on. Run `pip uninstall workbench"
            " tuning-workbench`, then install one of them, or use an environment for each.",
            stacklevel=2,
        )


_warn_of_namesake(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))


def __getattr__(name: str) -> _typing.Any:
    if name in _HOMES:
        return getattr(_importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
