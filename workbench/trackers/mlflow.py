"""Adapts accelerate's MLflow tracker: names that MLflow takes, and the status that the fit ended
with.

Runs go where MLflow's tracking URI says. The open run belongs to the thread: the user's own is left
alone.
"""

from __future__ import annotations

import re
from typing import Any

from accelerate.tracking import MLflowTracker

from workbench.events import Status

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(MLflowTracker):  # type: ignore[misc]
    """accelerate's tracker."""

    ended: Status = "finished"

    def start(self) -> None:
        """Open a run, or that of `run_id`: MLflow would give that one the name of this fit."""
        self.run_name: str | None = None if self.run_id else self.run_name
        self._known: dict[str, str] = {}
        super().start()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The settings as parameters: MLflow refuses other characters in a name, accelerate passes
        them on.

        MLflow refuses a second value too: a user's parameter of the name of a setting gets
        `hparams/` before it.
        """
        new = {}
        for name, value in _named(values).items():
            while name in self._known and self._known[name] != str(value):
                name = f"hparams/{name}"
            new[name] = value
            self._known[name] = str(value)
        super().store_init_configuration(new)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Numbers of one step: MLflow refuses other characters in a name, accelerate passes them
        on.
        """
        super().log(_named(values), step, **kwargs)

    def finish(self) -> None:
        """Close the run with how it ended: accelerate calls each run finished."""
        import mlflow

        mlflow.end_run(_STATUS[self.ended])


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
