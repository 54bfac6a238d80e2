"""Defines the base of the anywidgets whose front end is built from extensions/live."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import anywidget
import ipywidgets as widgets
import traitlets

from workbench.ui import texts
from workbench.ui.front_end import text_of

_NOT_BUILT = (
    f"export default {{ render({{ el }}) {{ el.textContent = {json.dumps(texts.NOT_BUILT)}; }} }};"
)


class Bundled(anywidget.AnyWidget):  # type: ignore[misc]
    """An anywidget with one of the modules in static/."""

    bundle: ClassVar[str]
    """The name of the module and of its style sheet."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)

    @traitlets.default("_esm")
    def _default_esm(self) -> str:
        return text_of(f"{self.bundle}.js") or _NOT_BUILT

    @traitlets.default("_css")
    def _default_css(self) -> str:
        return text_of(f"{self.bundle}.css")

    def _send(self, msg: Any, buffers: Any = None) -> None:
        """Send a message if a front end still receives it. marimo's page reports each message to
        a deleted widget as an error.
        """
        if not cut_off(self):
            super()._send(msg, buffers)


def cut_off(widget: widgets.Widget) -> bool:
    """Whether the front end no longer receives messages of a widget, as in marimo when the cell
    that made the widget runs again.
    """
    return widget.comm is None or getattr(widget.comm, "_closed", False)
