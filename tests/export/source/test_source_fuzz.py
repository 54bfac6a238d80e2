"""Random notebooks: whatever they do, the slice gives the same values."""

from __future__ import annotations

import random

import pytest

from tests.conftest import count
from tests.export.source.export_slicing import run_cells, slice_cells
from workbench.export.source.source import slice_call

NAMES = ["a", "b", "c", "d", "e"]
FUNCTIONS = ["f", "g", "h"]


START = """import random as rnd
import itertools
a = [1, 2, [3]]
counter = itertools.count()
source = rnd.Random(0)
class Box:
    def __init__(self, items):
        self.items = items
    def put(self, item):
        self.items.append(item)
    def size(self):
        return len(self.items)
    def grow(self):
        self.put(8)
        return self.size()
box = Box([4])"""


class Notebook:
    """Makes statements that can run, from what is defined so far."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lists = {"a"}
        self.functions: set[str] = set()
        self.cells = [START]

    def pick(self, names: set[str]) -> str:
        return self.random.choice(sorted(names))

    def statement(self) -> str:
        roll = self.random.random
        target = self.random.choice(NAMES)
        x, y = self.pick(self.lists), self.pick(self.lists)
        if self.functions and roll() < 0.25:
            f = self.pick(self.functions)
            if roll() < 0.4:
                return f"{f}({x})"
            self.lists.add(target)
            return f"{target} = {f}({x})"
        makers = [
            lambda: self.bind(target, f"[{self.random.randint(0, 9)}, {x}]"),
            lambda: self.bind(target, f"list({x})"),
            lambda: self.bind(target, f"{x}"),
            lambda: self.bind(target, f"[len({x}), *{y}]"),
            lambda: self.bind(target, f"[str(v)[:9] for v in {x}]"),
            lambda: self.bind(target, f"sorted(map(str, {x}))[:4]"),
            lambda: f"{x}.append({self.random.randint(0, 9)})",
            lambda: f"{x}[0] = {self.random.randint(10, 19)}",
            lambda: f"{x} += [{self.random.randint(20, 29)}]",
            lambda: f"{x}.insert(0, len({y}))",
            lambda: f"if len({x}) > 3:\n    {x}.pop()",
            lambda: self.bind(
                target,
                "[0]",
                f"if len({x}) % 2:\n    {target} = [1, len({x})]\nelse:\n    {target} = [2]",
            ),
            lambda: (
                f"for part in {x}:\n    if isinstance(part, list):\n        part.append(len({y}))"
            ),
            lambda: f"with open('/dev/null'):\n    {x}.reverse()",
            lambda: f"try:\n    {x}[99] = 1\nexcept IndexError:\n    {x}.append('no')",
            lambda: f"rnd.seed({self.random.randint(0, 3)})\nrnd.shuffle({x})",
            lambda: f"print(len({x}), {y}[:1])",
            lambda: self.define(),
            lambda: self.define(),
            lambda: self.bind(target, f"[*{x}, (w := len({y})), w]"),
            lambda: f"del {x}[0:0]",
            lambda: self.bind(target, f"{x} * 2"),
            lambda: self.bind(target, f"{x}[:2] + {y}"),
            lambda: self.bind(target, f"Box({x}).items"),
            lambda: f"box.put(len({x}))",
            lambda: f"box.items.append(len({x}))",
            lambda: self.bind(target, "box.items"),
            lambda: f"box = Box({x})",
            lambda: self.bind(target, "[box.size(), box.grow()]"),
            lambda: self.bind(target, "[next(counter)]"),
            lambda: self.bind(target, "[next(counter, 0) for _ in range(2)]"),
            lambda: self.bind(target, "[source.random()]"),
            lambda: f"source.shuffle({x})",
            lambda: f"pair = ({x}, {y})\npair[0].append(len(pair[1]))",
            lambda: self.bind(target, f"[v for v in {x} if v != len({y})]"),
            lambda: self.bind(target, f"(lambda: {x})()"),
            lambda: self.bind(target, f"list(zip({x}, {y}))"),
            lambda: f"first, *rest = {x} or [0]\nrest.append(first)",
            lambda: f"while len({x}) > 6:\n    {x}.pop()",
        ]
        return self.random.choice(makers)()

    def bind(self, target: str, value: str, text: str | None = None) -> str:
        self.lists.add(target)
        return text or f"{target} = {value}"

    def define(self) -> str:
        name = self.random.choice(FUNCTIONS)
        x = self.pick(self.lists)
        others = sorted(self.functions - {name})
        bodies = [
            f"    return [len(p), len({x})]",
            "    p.append(7)\n    return list(p)",
            "    return [len(p)]",
        ]
        # Only earlier letters are called, so that nothing recurses.
        callable_ = [o for o in others if o < name]
        if callable_:
            bodies.append(f"    return {self.random.choice(callable_)}(p)")
        if self.random.random() < 0.3:
            bodies = [f"    {x}.append(len(p))\n    return {x}", f"    return {x}[:1] + {x}[2:]"]
        elif self.random.random() < 0.3:
            bodies = [f"    global {x}\n    {x} = [*{x}, 5]\n    return [len(p)]"]
        self.functions.add(name)
        return f"def {name}(p, q={x}):\n{self.random.choice(bodies)}"

    def build(self) -> list[str]:
        for _ in range(self.random.randint(4, 18)):
            self.cells.append("\n".join(self.statement() for _ in range(self.random.randint(1, 3))))
            if self.random.random() < 0.15:
                self.cells.append(self.random.choice(self.cells[1:]))
        return self.cells


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_random_notebooks(start: int) -> None:
    lines = kept = 0
    for seed in range(start, start + count(10, 50)):
        notebook = Notebook(seed)
        cells = ["import workbench as wb", *notebook.build()]
        results = ", ".join(f"{f}([1, 2])" for f in sorted(notebook.functions))
        cells.append(
            f"model = {notebook.pick(notebook.lists)}\nbench = wb.Workbench(model, val=lambda: [{results}])"
        )
        try:
            run_cells(*cells)
        except (IndexError, RecursionError, MemoryError, TypeError, NameError, ValueError):
            continue
        outcome = slice_cells(*cells)
        text = "\n# ---\n".join(cells) + "\n\n# ==== slice\n" + outcome.sliced.code
        assert outcome.again["model"] == outcome.given["model"], text
        assert outcome.again["val"]() == outcome.given["val"](), text
        lines += len("\n".join(cells).split("\n"))
        kept += sum(1 for line in outcome.sliced.code.splitlines() if line)
    assert kept < 0.9 * lines, (kept, lines)


def test_slices_of_slices_are_themselves() -> None:
    for seed in range(20):
        cells = ["import workbench as wb", *Notebook(seed).build(), "bench = wb.Workbench(a)"]
        try:
            once = slice_call(run_cells(*cells))
        except (IndexError, RecursionError, MemoryError, TypeError, NameError, ValueError):
            continue
        again = slice_call(
            run_cells("import workbench as wb", once.imports + once.code, "bench = wb.Workbench(a)")
        )
        assert "".join(again.code.split()) == "".join(once.code.split())
