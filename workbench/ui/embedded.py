"""Defines what marimo shows: a panel as one anywidget, since marimo shows no other widgets."""

from __future__ import annotations

import ipywidgets as widgets
import traitlets

from workbench.ui.bundled import Bundled
from workbench.ui.controls.widget_utils import tree


class EmbeddedPanel(Bundled):
    """A panel within one anywidget, whose front end brings Jupyter's widgets along.

    It takes the state of the widgets from the models that the page has of them, and sends clicks through the same models.
    """

    bundle = "panel"

    panel = traitlets.Instance(widgets.Widget).tag(sync=True, **widgets.widget_serialization)
    names = traitlets.Dict(help="What the state of each kind of widget consists of: a page's models do not list it.").tag(sync=True)

    def __init__(self, panel: widgets.Widget) -> None:
        super().__init__(panel=panel, names={widget._model_name: widget.keys for widget in tree(panel)})


class PanelBox(widgets.VBox):  # type: ignore[misc]
    """The base of panels."""

    _embedded: EmbeddedPanel | None = None

    def _display_(self) -> EmbeddedPanel:
        """What marimo shows; it calls this method, and Jupyter does not."""
        if self._embedded is None or cut_off(self._embedded):
            self._embedded = EmbeddedPanel(self)
        return self._embedded

    def close(self) -> None:
        if self._embedded is not None:
            self._embedded.close()
        super().close()


def cut_off(widget: widgets.Widget) -> bool:
    """Whether the front end no longer hears a widget. marimo ends that when the cell that has made the widget runs again."""
    return widget.comm is None or widget.comm._closed
