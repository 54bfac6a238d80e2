"""accelerate's MLflow tracker, with a client of its own.

MLflow's usual functions share one address and one open run; those are the user's, who may have a run of their own open.
"""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path
from typing import Any

from accelerate.tracking import MLflowTracker

from workbench.events import Status

_AT_ONCE = 100
_LONGEST = 500
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(MLflowTracker):  # type: ignore[misc]
    """Runs go to `tracking_uri`, else to where MLflow was told to put them, else into `folder`."""

    def __init__(
        self,
        experiment_name: str,
        folder: Path,
        *,
        tracking_uri: str | Path | None = None,
        logging_dir: str | Path | None = None,
        run_id: str | None = None,
        tags: dict[str, Any] | str | None = None,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__(
            experiment_name, logging_dir, run_id=run_id, tags=tags, run_name=run_name, description=description
        )
        self._folder = folder
        self.run_id: str | None
        self._uri = str(tracking_uri) if tracking_uri is not None else None
        self.ended: Status = "finished"

    def start(self) -> None:
        """Open a run, in an experiment that is made if it is not there."""
        import mlflow
        from mlflow.tracking.context.registry import resolve_tags

        artifacts = str(self.logging_dir) if self.logging_dir is not None else None
        if self._uri is None and not mlflow.is_tracking_uri_set():
            self._uri = _local_store(self._folder)
            artifacts = artifacts or (self._folder / "artifacts").as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=self._uri)
        note = {} if self.description is None else {"mlflow.note.content": self.description}
        tags = {**(self.tags or {}), **note}
        if self.run_id is None:
            experiment = self._experiment(artifacts)
            made = self._client.create_run(experiment, run_name=self.run_name, tags=resolve_tags(tags))
            self.run_id = made.info.run_id
        else:
            self._client.update_run(self.run_id, status="RUNNING")
            for name, value in tags.items():
                self._client.set_tag(self.run_id, name, value)
        self.active_run = self._client.get_run(self.run_id)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The settings as parameters of the run."""
        from mlflow.entities import Param

        listed = [Param(_name(name), str(value)[:_LONGEST]) for name, value in values.items()]
        for first in range(0, len(listed), _AT_ONCE):
            self._client.log_batch(self.run_id, params=listed[first : first + _AT_ONCE])

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Numbers of one step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        listed = [Metric(_name(name), float(value), now, step or 0) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=listed, **kwargs)

    def finish(self) -> None:
        """Close the run, with how it ended."""
        self._client.set_terminated(self.run_id, _STATUS[self.ended])

    def _experiment(self, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self.experiment_name)
        if found is None:
            try:
                return str(self._client.create_experiment(self.experiment_name, artifact_location=artifacts))
            except MlflowException:
                found = self._client.get_experiment_by_name(self.experiment_name)
                if found is None:  # or else another bench was faster
                    raise
        return str(found.experiment_id)


def _local_store(folder: Path) -> str:
    """The address of a store in this folder: plain files, or a database where MLflow takes plain files no more."""
    from mlflow import environment_variables

    allowed = getattr(environment_variables, "MLFLOW_ALLOW_FILE_STORE", None)
    if allowed is None or allowed.get():
        return folder.as_uri()
    missing = [package for package in ("sqlalchemy", "alembic") if importlib.util.find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(
            f"this version of MLflow keeps local runs in a database, and {missing[0]} is missing: pip install mlflow, "
            "or set MLFLOW_ALLOW_FILE_STORE=true for plain files"
        )
    return f"sqlite:///{(folder / 'mlflow.db').as_posix()}"


def _name(name: str) -> str:
    """With those characters alone that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)
