"""Stores the user's annotations of a run (a name, notes, tags, a pin) in a file next to its header.

A run folder may come from an untrusted source, so the size of the file is limited, and values of a
wrong type are left out.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workbench.runs.folder.files import Folder
from workbench.values import shown

FILE = "annotations.json"
NAME, NOTES, TAG, TAGS = 80, 3000, 40, 20
"""How many characters a name, notes and a tag may have, and how many tags a run may have."""
_LARGEST = 1 << 17
"""The most bytes of the file."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """The name, notes and tags that the user gave to a run. A pinned run is not deleted by
    `keep_runs`.
    """

    name: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    pinned: bool = False

    @property
    def version(self) -> str:
        """A text that is the same for the same annotations alone."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


class StaleAnnotationsError(Exception):
    """Raised instead of a change to annotations that were changed since they were read."""


def read_annotations(run: Path) -> Annotations:
    """The annotations in a run folder; empty where no file of annotations can be read."""
    try:
        with Folder.opened(run) as folder:
            return annotations_in(folder)
    except OSError:
        return Annotations()


def annotations_in(folder: Folder) -> Annotations:
    """The annotations in an open run folder; empty where there are none, or no regular file has
    their name.

    Raises OSError if the system refuses to read them: they must not be taken for empty ones.
    """
    try:
        stored = folder.read_json(FILE, _LARGEST)
    except (FileNotFoundError, ValueError):
        return Annotations()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link
            return Annotations()
        raise
    kept: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        with contextlib.suppress(TypeError, ValueError):
            kept[name] = check(stored[name]) if name in stored else getattr(Annotations(), name)
    return Annotations(**kept)


def annotate(
    run: Path, name: str | None = None, notes: str | None = None, tags: Iterable[str] | None = None,
    pinned: bool | None = None, *, version: str | None = None,
) -> Annotations:  # fmt: skip
    """Replace annotations of the run in this folder; None leaves one unchanged. Several threads and
    processes may do so at once.

    version: that of the annotations on which the change is based; StaleAnnotationsError if there
    are others now. Raises OSError if they cannot be written, TypeError or ValueError naming a wrong
    argument.
    """
    values = {"name": name, "notes": notes, "tags": tags, "pinned": pinned}
    changes = {key: _CHECKS[key](value) for key, value in values.items() if value is not None}
    with Folder.opened(run) as folder, folder.locked():
        before = annotations_in(folder)
        if version is not None and version != before.version:
            raise StaleAnnotationsError(
                f"The annotations of {run.name} were changed meanwhile: look at what is there now,"
                " and change that."
            )
        now = replace(before, **changes)
        folder.write(FILE, (json.dumps(asdict(now), indent=1) + "\n").encode())
    return now


def _text(argument: str, most: int, *, lines: bool = False) -> Callable[[Any], str]:
    """A function that checks a text of at most so many characters; lines: it may have several
    lines.
    """

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{argument}={shown(value)}: give text.")
        text = value.strip()
        if len(text) > most:
            raise ValueError(
                f"{argument}={shown(text, 40)} has {len(text)} characters: give at most {most}."
            )
        if not lines and not text.isprintable():
            raise ValueError(
                f"{argument}={shown(text, 40)} has characters that cannot be shown in a line: leave"
                " them out."
            )
        return text

    return check


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(
            f"tags={shown(value)}: give a list of words, tags=['baseline'], for example."
        )
    tags = tuple(dict.fromkeys(tag for tag in map(_text("tags", TAG), value) if tag))
    if len(tags) > TAGS:
        raise ValueError(f"tags has {len(tags)} of them: give at most {TAGS}.")
    if any("," in tag for tag in tags):
        raise ValueError(
            f"tags={shown(list(tags))}: a tag has no comma, which separates them in the panel."
        )
    return tags


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"pinned={shown(value)}: give True or False.")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "name": _text("name", NAME),
    "notes": _text("notes", NOTES, lines=True),
    "tags": _tags,
    "pinned": _flag,
}
