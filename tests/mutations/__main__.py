"""Runs the suite of `make test` against each mutation and lists those that it does not catch: `python -m tests.mutations`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutations.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
FAILED = 1
"""pytest's exit status where tests were run and some failed."""


def caught(mutation: Mutation, folder: Path) -> bool:
    """Whether a test fails with the fault, in a copy of the project."""
    file = folder / "workbench" / mutation.file
    before = file.read_text()
    file.write_text(before.replace(mutation.old, mutation.new))
    try:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n0",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            *mutation.tests.split(),
        ]
        found = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        file.write_text(before)
    if found.returncode not in (0, FAILED):
        raise RuntimeError(
            f"{mutation.file}: pytest ended with {found.returncode}: {found.stdout[-2000:]}{found.stderr[-2000:]}"
        )
    return found.returncode == FAILED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "numbers", nargs="*", type=int, help="these alone, as listed; without any, all"
    )
    chosen = parser.parse_args().numbers or range(len(MUTATIONS))
    survived = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("workbench", "tests"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        for part in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / part, folder / part)
        for number in chosen:
            mutation = MUTATIONS[number]
            found = caught(mutation, folder)
            survived += [] if found else [number]
            print(
                f"{number:2} {'caught  ' if found else 'SURVIVED'} {mutation.file}: {mutation.old.strip()[:70]}",
                flush=True,
            )
    print(f"{len(chosen) - len(survived)} of {len(chosen)} are caught")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
