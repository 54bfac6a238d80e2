"""Defines `WorkbenchServer`: what Jupyter's server loads, with its settings and its addresses."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Int, List, TraitError, Unicode, validate

from workbench.server import http, sockets
from workbench.server.details import Details
from workbench.server.roots import why_no_runs
from workbench.server.studies import Studies
from workbench.server.watcher import Watcher

_log = logging.getLogger("workbench.server")
_THREADS, _COMMAND_THREADS = 4, 2


class WorkbenchServer(ExtensionApp):
    """Shows the runs of this machine beside the notebook."""

    name = "workbench"
    load_other_extensions = True
    roots = List(
        Unicode(),
        help=(
            "Folders of records (the root of a bench: `.workbench`) besides those that are found. A"
            " relative one is within the server's root folder. For a project's folder its"
            " `.workbench` is used."
        ),
    ).tag(config=True)
    search_depth = Int(
        4,
        min=0,
        max=32,
        help=(
            "How deep below the server's root folder `.workbench` folders are looked for; 0: in the"
            " root folder alone."
        ),
    ).tag(config=True)

    @validate("roots")
    def _within(self, proposal: Any) -> list[str]:
        for root in proposal["value"]:
            if not Path(root).expanduser().is_absolute() and ".." in Path(root).parts:
                raise TraitError(
                    f"WorkbenchServer.roots: {root!r} leads out of the server's root folder. Give "
                    "the absolute path of a folder that is elsewhere."
                )
        return list(proposal["value"])

    def initialize_settings(self) -> None:
        """Start nothing: the watcher's thread begins with the first request."""
        assert self.serverapp is not None
        top = Path(self.serverapp.root_dir)
        for root in self.roots:
            if why := why_no_runs(top, root):
                _log.warning("WorkbenchServer.roots: %r %s", root, why)
        self.watcher = Watcher(top, self.search_depth, tuple(self.roots))
        self.threads = {
            http.THREADS: ThreadPoolExecutor(_THREADS, thread_name_prefix="workbench-server"),
            http.COMMANDS: ThreadPoolExecutor(
                _COMMAND_THREADS, thread_name_prefix="workbench-server-commands"
            ),
        }
        self.settings.update(
            self.threads,
            workbench_watcher=self.watcher,
            workbench_details=Details(),
            workbench_studies=Studies(),
        )

    def initialize_handlers(self) -> None:
        """Add the addresses; Jupyter puts its base address in front."""
        self.handlers.extend([*http.ROUTES, *sockets.ROUTES])

    async def stop_extension(self) -> None:
        """End the threads."""
        await asyncio.to_thread(self.watcher.close)
        for threads in self.threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
