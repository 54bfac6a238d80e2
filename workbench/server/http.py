"""Answers HTTP requests: pages of the list of runs, one run, commands to it, studies, templates and
the bundle of the plots.

Each address asks Jupyter whether the user is known and may do it. Records are read in threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, AuthenticatedFileHandler
from tornado import web

import workbench.ui
from workbench.runs.folder.annotations import StaleAnnotationsError, annotate
from workbench.runs.folder.delete import delete
from workbench.server import templates
from workbench.server.commands import send
from workbench.server.details import Details, output
from workbench.server.errors import ConflictError, NotFoundError, StaleError
from workbench.server.query import Query, whole
from workbench.server.studies import Studies
from workbench.server.watcher import Watcher
from workbench.settings import SettingsError
from workbench.values import shown

THREADS, COMMANDS = "workbench_threads", "workbench_command_threads"
"""The names of the server's threads in its settings."""
RESOURCE = "workbench"
"""The name of the server's resources for an authorizer."""
_LARGEST = 1 << 16
"""The most bytes in the body of a request."""
STATIC = Path(workbench.ui.__file__).parent / "static"


class Handler(APIHandler):
    """The base class of all handlers. `answer` works in a thread, and turns a user's error into
    a status and a text.
    """

    auth_resource = RESOURCE

    @property
    def watcher(self) -> Watcher:
        """The watcher that all handlers share."""
        watcher: Watcher = self.settings["workbench_watcher"]
        return watcher

    async def answer(self, work: Callable[[], Any], threads: str = THREADS) -> None:
        """Answer with what `work` returns; None: with no content. threads: those that work."""
        try:
            content = await asyncio.get_running_loop().run_in_executor(self.settings[threads], work)
        except NotFoundError as error:
            self._refuse(404, error)
        except FileNotFoundError:
            self._refuse(
                404,
                "The run's folder, or a file in it, is no longer there. The run may have been"
                " deleted: list the runs again.",
            )
        except ConflictError as error:
            self._refuse(409, error)
        except StaleError as error:
            self._refuse(412, error)
        except (ValueError, TypeError, SettingsError) as error:
            self._refuse(400, error)
        except Exception as error:
            self.log.exception("A request for runs could not be answered.")
            # the former names no paths
            why = (error.strerror if isinstance(error, OSError) else None) or error
            self._refuse(
                500,
                f"The server could not do this ({type(error).__name__}: {why}). See its log, and"
                " try again.",
            )
        else:
            if content is None:
                self.set_status(204)
                self.finish()
            else:
                self.finish(json.dumps(content, allow_nan=False))

    def arguments(self) -> dict[str, str]:
        """The arguments in the address, the last one of each name, without Jupyter's own: the
        token, the one against requests of other sites, and the time that JupyterLab adds.
        """
        query = self.request.query_arguments
        try:
            return {
                name: self.get_query_argument(name)
                for name in query
                if name not in ("token", "_xsrf") and not name.isdecimal()
            }
        except web.HTTPError:
            raise ValueError(
                "An argument in the address is not UTF-8: encode it, as encodeURIComponent() does."
            ) from None

    def body(self, known: tuple[str, ...]) -> dict[str, Any]:
        """The JSON object in the body. ValueError: it is not JSON, too large, or has other keys
        than these.
        """
        if len(self.request.body) > _LARGEST:
            raise ValueError(
                f"The body of the request has {len(self.request.body)} bytes: send at most"
                f" {_LARGEST}."
            )
        try:
            content = json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise ValueError("The body of the request is not JSON: send an object.") from None
        if not isinstance(content, dict):
            raise ValueError(
                f"The body of the request is {shown(content, 40)}: send a JSON object."
            )
        unknown = [name for name in content if name not in known]
        if unknown:
            raise ValueError(
                f"{shown(unknown[0], 40)} is unknown here: send some of {', '.join(known)}."
            )
        return content

    def _refuse(self, status: int, error: Exception | str) -> None:
        self.set_status(status)
        self.finish({"message": str(error)})


class Runs(Handler):
    """The list of runs, page by page."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the rows that the query asks for."""
        await self.answer(lambda: self.watcher.page(Query.of(self.arguments())))


class StudyList(Handler):
    """The list of studies."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the newest studies of all roots."""
        studies: Studies = self.settings["workbench_studies"]
        await self.answer(lambda: studies.page(self.watcher.roots().values()))


class OneRun(Handler):
    """Everything about a run, changes to its annotations, and its deletion."""

    @web.authenticated
    @authorized
    async def get(self, key: str, id: str) -> None:
        """Answer with the details of a run."""
        await self.answer(partial(self._details, key, id))

    @web.authenticated
    @authorized
    async def patch(self, key: str, id: str) -> None:
        """Change the name, notes, tags or pin of a run, and answer with its row.

        If-Match: the "version" of the row on which the change is based; 412 if somebody has changed
        it since.
        """
        await self.answer(partial(self._annotate, key, id))

    @web.authenticated
    @authorized
    async def delete(self, key: str, id: str) -> None:
        """Delete a run."""
        await self.answer(partial(self._delete, key, id))

    def _details(self, key: str, id: str) -> dict[str, Any]:
        reader: Details = self.settings["workbench_details"]
        entry = self.watcher.find(key, id)
        return reader.of(entry, self.watcher.row(entry))

    def _annotate(self, key: str, id: str) -> dict[str, Any]:
        body = self.body(("name", "notes", "tags", "pinned"))
        empty = [name for name, value in body.items() if value is None]
        if empty:
            raise ValueError(f"{empty[0]}=null: give a value, or leave it out and it stays.")
        entry = self.watcher.find(key, id)
        match = self.request.headers.get("If-Match")
        try:
            annotate(
                entry.summary.path, **body, version=None if match is None else match.strip('"')
            )
        except StaleAnnotationsError as error:
            self.watcher.look()
            raise StaleError(str(error)) from None
        except TimeoutError as error:
            raise ConflictError(str(error)) from None
        row = self.watcher.row(entry)
        self.watcher.look()
        return row

    def _delete(self, key: str, id: str) -> None:
        force = self.arguments().get("force", "0")
        if force not in ("0", "1"):
            raise ValueError(
                f"force={shown(force, 40)}: give 0, or 1 if you know that the run has ended."
            )
        entry = self.watcher.find(key, id)
        try:
            delete(entry.summary.path, {}, force=force == "1")
        except RuntimeError as error:
            raise ConflictError(str(error)) from None
        self.watcher.look()


class Commands(Handler):
    """Commands to a run, which reach it however busy its kernel is."""

    @web.authenticated
    @authorized
    async def post(self, key: str, id: str) -> None:
        """Send a command to a run."""
        # these threads never wait for records to be read
        await self.answer(partial(self._send, key, id), COMMANDS)

    def _send(self, key: str, id: str) -> None:
        body = self.body(("type", "values"))
        send(self.watcher.find(key, id), body)


class Output(Handler):
    """What a launched run has printed."""

    @web.authenticated
    @authorized
    async def get(self, key: str, id: str) -> None:
        """Answer with what the run has printed from a place on."""
        await self.answer(
            lambda: output(
                self.watcher.find(key, id), whole(self.arguments(), "offset", 0, least=-1)
            )
        )


class Templates(Handler):
    """The list of template notebooks."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the titles of the notebooks."""
        await self.answer(templates.titles)


class Template(Handler):
    """One template notebook."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer with one notebook."""
        await self.answer(lambda: templates.notebook(name))


class Bundle(AuthenticatedFileHandler):
    """The module that draws the plots, and its style sheet: the same files as those of the
    notebook's panel.
    """

    auth_resource = RESOURCE

    def get_login_url(self) -> str:
        """A script cannot log in: refuse it."""
        raise web.HTTPError(403)


_RUN = r"workbench/api/runs/([^/]+)/([^/]+)"
ROUTES = [
    (r"workbench/api/runs", Runs),
    (r"workbench/api/studies", StudyList),
    (_RUN, OneRun),
    (_RUN + "/commands", Commands),
    (_RUN + "/output", Output),
    (r"workbench/api/templates", Templates),
    (r"workbench/api/templates/([^/]+)", Template),
    (r"workbench/static/(live\.(?:js|css))", Bundle, {"path": str(STATIC)}),
]
