"""Counts what makes code hard to read, and fails where there is more of it than before: `make check` runs it.

Lower a limit when its number has fallen; never raise one. `python -m tests.package.ratchet FILE …` lists the lines of files.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMITS = {
    "vague names": 73,
    "conditional expressions with one inside": 4,
    "lines over 100 columns": 48,
}
"""The most of each in workbench/."""
VAGUE = frozenset("found one own there this given taken told made part place what".split())
"""Names that say what a value is for in the sentence, and not what it is. Names of parameters do not count."""
WIDTH = 100


def findings(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each name that a module binds, and what is hard to read in it, with the line."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield "names", node.lineno
            if node.id in VAGUE:
                yield "vague names", node.lineno
        elif isinstance(node, ast.IfExp) and len(_conditionals(node)) > 1:
            yield "conditional expressions with one inside", node.lineno
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > WIDTH:
            yield "lines over 100 columns", number


def _conditionals(node: ast.expr) -> list[ast.IfExp]:
    return [child for child in ast.walk(node) if isinstance(child, ast.IfExp)]


def main() -> int:
    """Print the numbers; return 1 if one is above its limit."""
    if len(sys.argv) > 1:
        for name in sys.argv[1:]:
            lines = [
                f"{name}:{line}: {kind}" for kind, line in findings(Path(name)) if kind in LIMITS
            ]
            print(*lines, sep="\n")
        return 0
    counts = Counter(
        kind for path in (ROOT / "workbench").rglob("*.py") for kind, _ in findings(path)
    )
    for kind, limit in LIMITS.items():
        print(f"{counts[kind]} {kind} in workbench/, of {limit} that are allowed")
    print(f"{counts['vague names'] / counts['names']:.1%} of the names that it binds are vague")
    above = [kind for kind, limit in LIMITS.items() if counts[kind] > limit]
    if above:
        print(f"More {' and '.join(above)} than before. The lines of files that you changed:")
        print("  git diff --name-only main workbench | xargs python -m tests.package.ratchet")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
