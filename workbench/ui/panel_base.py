"""Defines the base of panels: one for each bench or job, shown by one anywidget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self
from weakref import WeakValueDictionary

from workbench.ui import texts
from workbench.ui.bundled import cut_off
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls.board import Board
from workbench.ui.controls.notice import CLICKED, Notice
from workbench.ui.static_output import CellEnds, StaticOutput, in_notebook


class PanelBase:
    """The base of panels: `of` keeps one for each bench or job, and `close` ends it. The canvas
    shows all of it.
    """

    notice: Notice
    canvas: LiveView
    board: Board
    static_output: StaticOutput
    _cells: CellEnds
    _closed = False

    def __init__(self, shown: Any) -> None:
        """shown: the bench or the job."""
        self._shown = shown

    @classmethod
    def of(cls, shown: Any) -> Self:
        """The one open panel of this bench or job, made on first use. Panels to which their
        front end no longer listens are closed.
        """
        gone = [panel for panel in tuple(_OPEN.values()) if cut_off(panel.canvas)]
        for panel in gone:
            panel.close()
        known = _OPEN.get(id(shown))
        current: Self = known if known is not None else cls(shown)
        unreachable: list[Any] = []
        for panel in gone:
            if panel._shown is not shown:
                unreachable += panel._unreachable()
        current._offer_to_stop(unreachable)
        return current

    def _opened(self) -> None:
        """Called when the panel has been made."""
        _OPEN[id(self._shown)] = self

    def close(self) -> None:
        """Stop listening, and close the canvas. The jobs that it shows continue."""
        if self._closed:
            return
        self._closed = True
        if _OPEN.get(id(self._shown)) is self:
            del _OPEN[id(self._shown)]
        self._end()
        self.canvas.layout.close()
        self.canvas.close()

    def _end(self) -> None:
        """Stop listening."""
        raise NotImplementedError

    def _unreachable(self) -> list[Any]:
        """The jobs that no panel can stop any more when this one has closed."""
        return []

    def _offer_to_stop(self, jobs: Sequence[Any]) -> None:
        if not jobs:
            return

        def stop() -> None:
            self.notice.drop(CLICKED)
            for job in jobs:
                self.notice.attempt(texts.ACTIONS["stop"], job.stop)

        names = ", ".join(job.id for job in jobs)
        # The start of the next job removes this notice, since these jobs have ended then.
        self.notice.say(
            texts.still_goes(names),
            "warning",
            about=CLICKED,
            actions={texts.stop_jobs(names): stop},
        )

    def _hear_controls(self, message: Mapping[str, Any]) -> bool:
        """Carry out what the user did with a control, and show its error; False: the message is
        about something else.
        """
        try:
            return self.board.hear(message)
        except Exception as error:  # noqa: BLE001 - shown to the person who clicked
            self.notice.error(error, texts.ACTIONS["canvas"])
            return True

    def _bundle(self, plain: str, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a notebook shows: the canvas. plain: the text where no widget can be."""
        data, metadata = self.canvas._repr_mimebundle_(**kwargs), {}
        if isinstance(data, tuple):
            data, metadata = data
        data["text/plain"] = plain
        if in_notebook():
            self.static_output.open()
            self._cells.watch()
        return data, metadata

    def _display_(self) -> LiveView:
        """Called by marimo, and not by Jupyter, to show the panel."""
        return self.canvas


# By id of the shown object. A panel refers to that object, so the id stays unique while the panel
# exists.
_OPEN: WeakValueDictionary[int, Any] = WeakValueDictionary()
