"""Writes a checkpoint of which each rank has a part, while training continues.

Each rank copies its part and writes the copy in a thread, into one temporary folder. The threads
report to the process group's store, since the training uses its collectives. When all parts are on
the disk, rank 0 renames the folder: until then, readers find the checkpoint before.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torch.distributed import distributed_c10d

from workbench.engine.checkpoint.files import complete, in_words
from workbench.engine.distributed.process_group import ProcessGroup

_PERIOD = 0.02
"""Seconds between two looks for what the other ranks have written."""
_numbers = itertools.count()
"""All ranks begin the same writers, so that they give them the same numbers."""


class RankWriter:
    """Writes one rank's part of a checkpoint. All ranks make it together."""

    def __init__(
        self,
        ranks: ProcessGroup,
        aside: Path,
        path: Path,
        write: Callable[[Path], None],
        patience: float,
    ) -> None:
        """aside, path: the folder in which all ranks write, and the checkpoint's. write: writes
        this rank's part into a folder. patience: seconds that rank 0 waits for the others.
        """
        self.name = path.name
        self.error: OSError | None = None
        """On rank 0: why there is no checkpoint; elsewhere why this rank's part was not written."""
        self._ranks, self._aside, self._path, self._write = ranks, aside, path, write
        self._patience = patience
        self._store = distributed_c10d._get_default_store()
        self._key = f"workbench-checkpoint-{next(_numbers)}"
        self._thread = threading.Thread(target=self._run, name="workbench-checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether this rank has nothing more to do for it."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it is done, or that long."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            with in_words(self.name):
                self._write(self._aside)
        except OSError as error:
            self.error = error
        said = "" if self.error is None else f"rank {self._ranks.rank}: {self.error}"
        try:
            self._store.set(f"{self._key}/{self._ranks.rank}", said)
            if self._ranks.first:
                self._complete()
        except RuntimeError as error:  # the process that has the store is gone
            self.error = OSError(str(error))
        finally:
            if self._ranks.first:
                shutil.rmtree(self._aside, ignore_errors=True)

    def _complete(self) -> None:
        """Wait for all ranks and give the checkpoint its name."""
        keys = [f"{self._key}/{rank}" for rank in range(self._ranks.world)]
        until = time.monotonic() + self._patience
        while not self._store.check(keys):
            if time.monotonic() > until:
                late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                self.error = OSError(
                    f"ranks {late} have not written their part within {self._patience:.0f} s"
                    " (rank_timeout)"
                )
                return
            time.sleep(_PERIOD)
        errors = [text for text in map(self._said, keys) if text]
        if errors:
            self.error = self.error or OSError("; ".join(errors))
            return
        try:
            complete(self._aside, self._path)
        except OSError as error:
            self.error = error

    def _said(self, key: str) -> str:
        text: bytes = self._store.get(key)
        self._store.delete_key(key)
        return text.decode()
