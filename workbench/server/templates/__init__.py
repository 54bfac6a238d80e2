"""Template notebooks to start from. Each is a file here; its metadata have its title and its
description.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import nbformat

from workbench.server.errors import NotFoundError
from workbench.values import shown

NAMES = ("own-data", "lightning-module", "transformers")


def titles() -> list[dict[str, str]]:
    """Return the name, the title and the description of each notebook."""
    return [{"name": name, **notebook(name)["metadata"]["workbench"]} for name in NAMES]


def notebook(name: str) -> dict[str, Any]:
    """Return the notebook of this name, in nbformat 4. NotFoundError: there is no such notebook."""
    if name not in NAMES:
        raise NotFoundError(
            f"template={shown(name, 40)}: there is no such notebook. Ask for one of"
            f" {', '.join(NAMES)}."
        )
    text = resources.files(__name__).joinpath(f"{name}.ipynb").read_text(encoding="utf-8")
    return dict(nbformat.reads(text, as_version=4))  # type: ignore[no-untyped-call]
