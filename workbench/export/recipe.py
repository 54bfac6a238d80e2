"""What an exported script depends on, before any of it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from workbench.export.source import Sliced
from workbench.settings import Settings

CARRIED = {
    "lr", "weight_decay", "batch_size", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
    "max_epochs", "max_steps", "shuffle", "num_workers", "pin_memory", "persistent_workers", "drop_last",
    "check_val_every_n_epoch", "accelerator", "seed", "deterministic",
}  # fmt: skip
"""The settings that a block below carries."""


@dataclasses.dataclass(frozen=True)
class Data:
    """What was given for a data set."""

    kind: Literal["dataset", "loader", "arrays", "dict", "batches"]
    call: str = ""
    """What is called to get a loader: on the object that was given, or on the model ("network.…")."""
    setup: bool = False
    """Whether the object that was given must be set up first."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that a script depends on."""

    run: str
    model: str
    version: str
    sliced: Sliced
    settings: Settings
    threads: int
    weights: str
    script: str
    stopped: bool
    changes: Mapping[int, Mapping[str, float | None]]
    train: Data
    val: Data | None
    batch: str
    mean: bool
    loss_is_module: bool
    lightning: Mapping[str, str] | None
    """For an object with hooks of its own: where its lr and batch_size live, as assignable expressions."""
    lightning_index: bool = True
    """Whether its training_step takes the number of the batch."""

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler was given to the bench."""
        return self.given("scheduler") is not None

    @property
    def clips(self) -> bool:
        """Whether gradients were clipped at any time."""
        return self.settings.gradient_clip_val is not None or self.changed("gradient_clip_val")

    def changed(self, name: str) -> bool:
        """Whether a setting was changed while the run went on."""
        return any(name in values for values in self.changes.values())

    def given(self, name: str) -> str | None:
        """The expression that was given for an argument of the bench; None where there was none."""
        expression = self.sliced.arguments.get(name, "None")
        return None if expression == "None" else expression
