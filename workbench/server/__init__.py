"""The extension of Jupyter's server: runs beside the notebook. The only package that imports
jupyter_server and tornado.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Where Jupyter finds the extension."""
    from workbench.server.app import WorkbenchServer

    return [{"module": "workbench.server", "app": WorkbenchServer}]
