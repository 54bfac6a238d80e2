"""Wraps a panel in one anywidget for marimo, which shows no other widgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self
from weakref import WeakValueDictionary

import ipywidgets as widgets
import traitlets

from workbench.ui import texts
from workbench.ui.bundled import Bundled, cut_off
from workbench.ui.controls.notice import CLICKED, Notice
from workbench.ui.controls.widget_utils import tree


class EmbeddedPanel(Bundled):
    """A panel within one anywidget, whose front end contains Jupyter's widgets.

    The front end reads the state of the widgets from the page's models, and sends clicks through
    the same models.
    """

    bundle = "panel"

    panel = traitlets.Instance(widgets.Widget).tag(sync=True, **widgets.widget_serialization)
    names = traitlets.Dict(
        help="The names in the state of each kind of widget, which a page's models do not list."
    ).tag(sync=True)

    def __init__(self, panel: widgets.Widget) -> None:
        super().__init__(panel=panel, names=_names(panel))


def _names(*roots: widgets.Widget) -> dict[str, list[str]]:
    return {widget._model_name: widget.keys for root in roots for widget in tree(root)}


class PanelBox(widgets.VBox):  # type: ignore[misc]
    """The base of panels: `of` keeps one for each bench or job, `close` ends it, and marimo
    calls `_display_` to show it.
    """

    notice: Notice
    children: tuple[widgets.Widget, ...]
    _closed = True  # until it is made: ipywidgets closes widgets that are freed half-made
    _embedded: EmbeddedPanel | None = None

    @classmethod
    def of(cls, shown: Any) -> Self:
        """The one open panel of this bench or job, made on first use. Panels to which their
        front end no longer listens are closed.
        """
        gone = [panel for panel in tuple(_OPEN.values()) if cut_off(panel)]
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

    def _opened(self, shown: Any) -> None:
        """Called when the panel of `shown` has been made."""
        _OPEN[id(shown)] = self
        self._shown, self._closed = shown, False

    def close(self) -> None:
        """Stop listening, and close the widgets. The jobs that it shows continue."""
        if self._closed:
            return
        self._closed = True
        if _OPEN.get(id(self._shown)) is self:
            del _OPEN[id(self._shown)]
        self._end()
        if self._embedded is not None:
            self._embedded.close()
        for widget in list(tree(self))[1:]:
            widget.close()
        super().close()

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
            texts.still_goes(names), "warning", about=CLICKED, action=(texts.stop_jobs(names), stop)
        )

    def _append(self, widget: widgets.Widget) -> None:
        """Add a widget below the others."""
        if self._embedded is not None:
            self._embedded.names = _names(self, widget)
        self.children = (*self.children, widget)

    def _display_(self) -> EmbeddedPanel:
        """Called by marimo, and not by Jupyter, to show the panel."""
        if self._embedded is not None and cut_off(self._embedded):
            self._embedded.close()
            self._embedded = None
        if self._embedded is None:
            self._embedded = EmbeddedPanel(self)
        return self._embedded


# By id of the shown object. A panel refers to that object, so the id stays unique while the panel
# exists.
_OPEN: WeakValueDictionary[int, PanelBox] = WeakValueDictionary()
