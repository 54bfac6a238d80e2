"""Adds the notebooks to the site as pages: MkDocs calls this file, which mkdocs.yml names under `hooks`.

The pages of docs/ link to the notebooks in the repository. On the site these links lead to the pages that are made here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from nbconvert import MarkdownExporter

FOLDER = Path(__file__).parents[2] / "notebooks"
_LINK = re.compile(r"\]\((?P<up>(?:\.\./)*)\.\./notebooks/(?P<name>\w+)\.ipynb")
_NEXT = re.compile(r"\]\((?P<name>\w+)\.ipynb\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and its pictures."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        text, pictures = markdown(path)
        files.append(
            File.generated(
                config,
                f"notebooks/{path.stem}.md",
                content=text,
                inclusion=InclusionLevel.NOT_IN_NAV,
            )
        )
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """Let links to notebooks lead to their pages."""
    return _NEXT.sub(r"](\g<name>.md)", _LINK.sub(r"](\g<up>notebooks/\g<name>.md", text))


def markdown(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook with its outputs as Markdown, and its pictures by name."""
    read = nbformat.read(notebook, as_version=4)
    read.metadata["language_info"] = {"name": "python"}  # for the colours of the code
    text, found = MarkdownExporter().from_notebook_node(
        read, resources={"unique_key": notebook.stem}
    )
    return text.replace("![png](", "![What the cell above has drawn]("), found["outputs"]
