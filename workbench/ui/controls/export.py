"""Shows the script of a run beside the panel, and writes it to the file that the user names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workbench.export.errors import NotResumable, NotStandAlone
from workbench.export.file_format import (
    ENDINGS,
    PAGES,
    Choice,
    ScriptOptions,
    has_options,
    is_verified,
)
from workbench.ui import texts
from workbench.ui.bench import Bench
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.controls.notice import Notice
from workbench.ui.controls.run_buttons import RunButtons
from workbench.ui.controls.widget_utils import aside

PART = 30_000
"""Bytes of a part as JSON, so that it fits into one message."""
MOST = 12
"""How many parts are shown at most; a longer script is cut, with a note. The written file is
complete.
"""
_PAGE = "run.html"
"""The file of a page that was given no name."""
_ABOUT, _WRITTEN = "export", "written"
"""The keys of two notices: why there is no script, and where one was written; a preview does not
remove the second one.
"""
_SOON = 2.0
"""Seconds in which a job that was stopped before its turn ends."""


class ScriptPreview:
    """Sends the text in parts, each small enough for one message. `put` takes a name and plain
    data.

    Each part has the number of its preview, so that parts of two scripts are never joined.
    """

    def __init__(self, put: Callable[[str, Any], None]) -> None:
        self._put = put
        self.run = ""
        """The run whose script is shown; "": none."""
        self._parts = self._showings = 0

    def show(
        self,
        run: str,
        text: str,
        format: str = "script",
        options: Iterable[str] = (),
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Show the script of this run, or another format of it.

        options: the names of those that it has. refused: why it cannot have others, by name.
        """
        self.run = run
        parts = _parts(text)
        self._showings += 1
        for number, chunk in enumerate(parts):
            self._put(f"script.{number}", {"of": self._showings, "text": chunk})
        self._parts = max(self._parts, len(parts))
        self._put(
            "script",
            {
                "run": run,
                "format": format,
                "of": self._showings,
                "parts": len(parts),
                "lines": text.count("\n") + 1,
                "options": list(options),
                "refused": dict(refused or {}),
            },
        )

    def hide(self) -> None:
        """Close the preview and drop the text, so that a view that opens later does not get it."""
        self.run = ""
        self._put("script", None)
        for number in range(self._parts):
            self._put(f"script.{number}", None)
        self._parts = 0


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    while text and len(parts) < MOST:
        parts.append(cut(text, PART))
        text = text[len(parts[-1]) :]
    if text:
        parts[-1] += texts.SCRIPT_CUT
    return parts


class ExportForm:
    """The form that Export opens and whose button writes the script. `bar` returns the run
    buttons, whose clicks call this form.
    """

    def __init__(
        self,
        bench: Bench,
        bar: Callable[[], RunButtons],
        put: Callable[[str, Any], None],
        notice: Notice,
    ) -> None:
        self._bench, self._bar, self._put, self._notice = bench, bar, put, notice
        self._preview = ScriptPreview(put)
        self._run: str | None = None
        """The run whose script is shown; None: the last fit."""
        self._format: Choice = "script"
        """The format that was chosen."""
        self._written: Choice = "script"
        """The format that is shown and written: where a script is not possible, a headless one."""
        self._options: frozenset[str] = frozenset()
        """The names of the options that were chosen. A run that cannot have one is shown without
        it.
        """
        self._refused: Mapping[str, str] = {}
        """Why the script that is shown cannot have some of them."""
        self._shown: Any = None
        """The last fit at the time when the shown script was made."""
        self._making, self._placing = threading.Lock(), threading.Lock()
        """Serializes the making of scripts, so that the newest is shown last, and none is shown
        after the form was closed.
        """

    def open(self, run: str) -> None:
        """Show the script of this run, and the form that writes it."""
        switch = self._bar().export
        switch.pressed = False  # another run's script may be open
        self._run = run
        switch.pressed = True

    def choose(self, format: Choice) -> None:
        """Show the run in this format, and write it in this format from now on."""
        self._format = format
        if self._bar().export.pressed:
            aside(self._show, self._failed, "preview")

    def choose_option(self, option: str, wanted: bool) -> None:
        """Show and write scripts with this option from now on, or without it."""
        self._options = self._options | {option} if wanted else self._options - {option}
        if self._bar().export.pressed:
            aside(self._show, self._failed, "preview")

    def close(self) -> None:
        """Close the form."""
        self._bar().export.pressed = False

    def show(self, wanted: bool) -> None:
        """Open or close the form."""
        if wanted:
            aside(self._show, self._failed, "preview")
        else:
            self._run = None
            self._hide()

    def ended(self, job: Any) -> None:
        """Update the preview when a job has ended, since another fit may now be the last one.

        job: the job that ends, which may still use the model; None: one that was stopped before its
        turn.
        """

        def work() -> None:
            end = time.monotonic() + _SOON
            while not (self._idle() if job is None else job.done()) and (
                job is not None or time.monotonic() < end
            ):
                time.sleep(0.02)
            # If another job runs or waits, this is called again when it ends.
            if self._idle() and _last_fit(self._bench.jobs) is not self._shown:
                self._show()

        def failed(error: Exception) -> None:
            if self._idle():  # else another one has just been started
                self._hide()
                self._failed(error)

        if self._bar().export.pressed and self._run is None:
            aside(work, failed, "preview")

    def write(self, path: str) -> None:
        """Write the script to this file ("": train.py), with the starting weights next to it.

        The form closes when it is written. A script is verified first, which the form shows: the
        bench tells the panel the result, as a message.
        """
        run, format = self._run, self._written
        options = _possible(self._options, self._refused, format)
        path = path.strip() or (_PAGE if format == "page" else f"train{ENDINGS[format]}")

        def work() -> None:
            self._notice.drop(_WRITTEN)
            if format == "page":
                if not path.lower().endswith(PAGES):
                    raise ValueError(texts.no_page(path))
                self._bench.export(path, run)
            else:
                if is_verified(format):
                    self._put("writing", cut(path, 500))
                try:
                    self._bench.export(path, run, format=format, **options)
                finally:
                    self._put("writing", "")
            self._notice.drop(_ABOUT)
            self._notice.say(texts.written(path), about=_WRITTEN)
            self.close()

        def failed(error: Exception) -> None:
            self._notice.drop(_WRITTEN)
            self._failed(error)

        aside(work, failed, "export")

    def _idle(self) -> bool:
        return all(job.done() for job in self._bench.jobs)

    def _show(self) -> None:
        with self._making:
            wanted = run, format, options = self._run, self._format, self._options
            shown = _last_fit(self._bench.jobs)
            text, written, why, refused = self._script(run, format, options)
            text = _readable(text) if format == "notebook" else text
            with self._placing:
                # Unless the user has opened or chosen something else since.
                if self._bar().export.pressed and wanted == (
                    self._run,
                    self._format,
                    self._options,
                ):
                    self._notice.drop(_ABOUT)
                    if why:
                        self._notice.say(texts.headless(why), about=_ABOUT)
                    self._shown, self._written, self._refused = shown, written, refused
                    names = _possible(options, refused, written)
                    self._preview.show(run or texts.LAST_RUN, text, written, names, refused)

    def _script(
        self, run: str | None, format: Choice, options: frozenset[str]
    ) -> tuple[str, Choice, str, Mapping[str, str]]:
        """The text; its format, which is "workbench" where a stand-alone script is not possible;
        why it is not; and why it cannot have some of the options, by name.
        """
        if format == "page":
            call = f"bench.export({', '.join(map(repr, filter(None, (_PAGE, run))))})"
            return f"{call}\n\n{texts.PAGE}\n", format, "", {}
        refused: dict[str, str] = {}
        try:
            try:
                text = self._bench.script(run, format=format, **_possible(options, {}, format))
            except NotResumable as error:
                refused = {"resume": error.why}
                text = self._bench.script(run, format=format, **_possible(options, refused, format))
            return text, format, "", refused
        except NotStandAlone as error:
            if format != "script":
                raise
            headless = self._bench.script(run, format="workbench")
            return headless, "workbench", str(error.__cause__ or error), {}

    def _hide(self) -> None:
        with self._placing:
            self._preview.hide()

    def _failed(self, error: Exception) -> None:
        self._notice.error(error, texts.ACTIONS["export"], _ABOUT)


def _possible(options: frozenset[str], refused: Mapping[str, str], format: Choice) -> ScriptOptions:
    """The chosen options that a file of this format can have."""
    possible: ScriptOptions = {}
    if format != "page" and has_options(format):
        for name in sorted(options - refused.keys()):
            possible[name] = True  # type: ignore[literal-required]  # a request has no other names
    return possible


def _readable(notebook: str) -> str:
    # Imported here, because it imports the rest of export, which a panel seldom needs.
    from workbench.export.formats.notebook import cells_as_text

    return cells_as_text(notebook)


def _last_fit(jobs: Iterable[Any]) -> Any:
    """The last fit, as the job itself, since the ids of deleted runs may be used again."""
    fits = [job for job in jobs if job.kind == "fit" and job.status in ("finished", "stopped")]
    return fits[-1] if fits else None
