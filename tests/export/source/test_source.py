"""The slice of a notebook: what is in it, what is not, and that it gives the same values."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from tests.export.source.export_slicing import execute, run_cells, slice_cells
from workbench.export.source.capture import literal
from workbench.export.source.source import slice_call

WB = "import workbench as wb\n"
MAKE = "bench = wb.Workbench(model)"


def values(*cells: str) -> object:
    """The model of the slice, after checking that it equals the notebook's; models here are plain data."""
    outcome = slice_cells(WB, *cells)
    assert outcome.again["model"] == outcome.given["model"]
    return outcome


def code(*cells: str) -> str:
    """The code of the slice, after running it and comparing the model."""
    outcome = slice_cells(WB, *cells)
    assert outcome.again["model"] == outcome.given["model"]
    return outcome.sliced.code


def test_a_network_with_its_data_and_nothing_else() -> None:
    torch = importlib.import_module("torch")
    outcome = slice_cells(
        "import os, torch\nfrom torch import nn, optim\nimport torch.nn.functional as F\nimport workbench as wb\n",
        "# how wide\nHIDDEN = 8  # units\ntorch.manual_seed(0);",
        "def act(x):\n    return F.relu(x)",
        "class Net(nn.Module):\n"
        '    """A net."""\n\n'
        "    def __init__(self, h):\n        super().__init__()\n        self.a = nn.Linear(4, h)\n"
        "        self.b = nn.Linear(h, 2)\n\n    def forward(self, x):\n        return self.b(act(self.a(x)))\n",
        "x = torch.randn(20, 4); y = (x.sum(1) > 0).long()\nunused = x * 3\nprint(unused.shape)",
        "torch.manual_seed(1)",
        "model = Net(HIDDEN)\nmodel(x)\nmodel(x).shape\nnn.init.zeros_(model.b.bias)\n"
        "for p in model.a.parameters():\n    nn.init.ones_(p)\n"
        'bench = wb.Workbench(model, train=(x, y), loss=F.cross_entropy, metrics={"acc": lambda o, t: o}, lr=3e-3)',
    )
    assert (
        outcome.sliced.imports
        == "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    )
    assert outcome.sliced.code == (
        "# how wide\nHIDDEN = 8  # units\ntorch.manual_seed(0)\n\n\n"
        "def act(x):\n    return F.relu(x)\n\n\n"
        'class Net(nn.Module):\n    """A net."""\n\n'
        "    def __init__(self, h):\n        super().__init__()\n        self.a = nn.Linear(4, h)\n"
        "        self.b = nn.Linear(h, 2)\n\n    def forward(self, x):\n        return self.b(act(self.a(x)))\n\n\n"
        "x = torch.randn(20, 4)\ny = (x.sum(1) > 0).long()\n\n"
        "torch.manual_seed(1)\n\n"
        "model = Net(HIDDEN)\n\n"
        "nn.init.zeros_(model.b.bias)\nfor p in model.a.parameters():\n    nn.init.ones_(p)\n"
    )
    assert outcome.sliced.arguments == {
        "model": "model",
        "train": "(x, y)",
        "loss": "F.cross_entropy",
        "metrics": '{"acc": lambda o, t: o}',
        "lr": "3e-3",
    }
    assert outcome.sliced.names == {
        "torch",
        "F",
        "nn",
        "HIDDEN",
        "act",
        "Net",
        "x",
        "y",
        "model",
        "p",
    }
    assert outcome.sliced.modules == {"torch"}
    for mine, again in zip(
        outcome.given["model"].parameters(), outcome.again["model"].parameters(), strict=True
    ):
        assert torch.equal(mine, again)
    assert torch.equal(outcome.given["train"][0], outcome.again["train"][0])


def test_the_workbench_in_one_import_with_what_is_needed() -> None:
    torch = importlib.import_module("torch")
    outcome = slice_cells("import torch, workbench as wb\n", "model = [torch.ones(2)]", MAKE)
    assert outcome.sliced.imports == "import torch\n"
    assert outcome.sliced.code == "model = [torch.ones(2)]\n"
    assert torch.equal(outcome.again["model"][0], torch.ones(2))


# Cells, then the lines the slice must have, in order and without others.
SLICES = {
    "last definition": (["x = 1", "x = 2", "model = [x]"], ["x = 2", "model = [x]"]),
    "a value used before it is bound anew": (
        ["x = 1", "y = x + 1", "x = 5", "model = [x, y]"],
        ["x = 1", "y = x + 1", "x = 5", "model = [x, y]"],
    ),
    "tuple": (
        ["a, (b, *c) = 1, (2, 3, 4)", "d = 9", "model = c"],
        ["a, (b, *c) = 1, (2, 3, 4)", "model = c"],
    ),
    "walrus": (["print(n := 3)", "model = [n]"], ["print(n := 3)", "model = [n]"]),
    "walrus in a comprehension": (
        ["model = [last := i for i in range(3)]", "model = [last]"],
        ["model = [last := i for i in range(3)]", "model = [last]"],
    ),
    "augmented": (["x = 1", "x += 1", "z = 3", "model = [x]"], ["x = 1", "x += 1", "model = [x]"]),
    "annotated": (["x: int = 1", "y: int", "model = [x]"], ["x: int = 1", "model = [x]"]),
    "item": (
        ["model = [1, 2]", "model[0] = 7", "other = [1]", "other[0] = 2"],
        ["model = [1, 2]", "model[0] = 7"],
    ),
    "deleted item": (["model = [1, 2]", "del model[0]"], ["model = [1, 2]", "del model[0]"]),
    "method": (
        ["model = []", "model.append(3)", "other = []", "other.append(1)"],
        ["model = []", "model.append(3)"],
    ),
    "argument": (
        [
            "import random\nmodel = [1, 2, 3]",
            "random.seed(1)\nrandom.shuffle(model)\nprint(model)\nlen(model)",
        ],
        ["model = [1, 2, 3]", "random.seed(1)", "random.shuffle(model)"],
    ),
    "change in an expression": (
        ["model = [1, 2]", "x = model.pop()"],
        ["model = [1, 2]", "x = model.pop()"],
    ),
    "alias": (
        ["inner = [1]\nmodel = [inner, 2]", "part = model[0]", "part.append(5)"],
        ["inner = [1]", "model = [inner, 2]", "part = model[0]", "part.append(5)"],
    ),
    "change by a loop over parts": (
        ["model = [[1], [2]]", "for part in model:\n    part.append(0)"],
        ["model = [[1], [2]]", "for part in model:", "    part.append(0)"],
    ),
    "changed after its last use": (
        ["x = [1]", "model = [x]", "x.append(2)", "x = [3]", "x.append(4)"],
        ["x = [1]", "model = [x]", "x.append(2)"],
    ),
    "iterators and generators move on": (
        ["it = iter([1, 2, 3])", "a = next(it)", "model = [next(it)]"],
        ["it = iter([1, 2, 3])", "a = next(it)", "model = [next(it)]"],
    ),
    "a random generator moves on": (
        ["import random\nrng = random.Random(0)", "a = rng.random()", "model = [rng.random()]"],
        ["rng = random.Random(0)", "a = rng.random()", "model = [rng.random()]"],
    ),
    "a function that shows": (
        ["model = [1]", "def show(m):\n    print(m[0])", "show(model)"],
        ["model = [1]"],
    ),
    "a function that changes": (
        ["model = [1]", "def grow(m):\n    m.append(2)", "grow(model)"],
        ["model = [1]", "def grow(m):", "    m.append(2)", "grow(model)"],
    ),
    "a function that changes, inside an expression": (
        ["model = [1]", "def grow(m):\n    m.append(2)\n    return 1", "n = grow(m=model)"],
        ["model = [1]", "def grow(m):", "    m.append(2)", "    return 1", "n = grow(m=model)"],
    ),
    "with, try, if, for": (
        [
            "import contextlib",
            "with contextlib.nullcontext(3) as three:\n    x = three",
            "try:\n    import no_such_module as fast\nexcept ImportError:\n    fast = None",
            "if fast is None:\n    y = 1\nelse:\n    y = 2",
            "total = 0\nfor i in range(3):\n    total += i\nelse:\n    z = total",
            "model = [x, y, z]",
        ],
        [
            "with contextlib.nullcontext(3) as three:",
            "    x = three",
            "try:",
            "    import no_such_module as fast",
            "except ImportError:",
            "    fast = None",
            "if fast is None:",
            "    y = 1",
            "else:",
            "    y = 2",
            "total = 0",
            "for i in range(3):",
            "    total += i",
            "else:",
            "    z = total",
            "model = [x, y, z]",
        ],
    ),
    "if without else keeps what was before": (
        ["x = 1", "if x > 5:\n    x = 2", "model = [x]"],
        ["x = 1", "if x > 5:", "    x = 2", "model = [x]"],
    ),
    "both branches": (
        ["x = 1", "if len('ab') > 5:\n    x = 2\nelse:\n    x = 3", "model = [x]"],
        ["if len('ab') > 5:", "    x = 2", "else:", "    x = 3", "model = [x]"],
    ),
    "functions read globals when called": (
        [
            "n = 1",
            "def f():\n    return n",
            "model = [f()]",
            "n = 2",
            "model.append(f)\nmodel = [model[0], model[1]()]",
        ],
        [
            "n = 1",
            "def f():",
            "    return n",
            "model = [f()]",
            "n = 2",
            "model.append(f)",
            "model = [model[0], model[1]()]",
        ],
    ),
    "a helper defined after its user": (
        ["def f():\n    return g()", "def g():\n    return 1", "model = [f()]"],
        ["def f():", "    return g()", "def g():", "    return 1", "model = [f()]"],
    ),
    "the class of the last before the call": (
        [
            "def f():\n    return 1",
            "def f():\n    return 2",
            "model = [f()]",
            "def f():\n    return 3",
        ],
        ["def f():", "    return 2", "model = [f()]"],
    ),
    "the same cell twice": (
        [
            "n = 4\ndef f():\n    return n",
            "model = [f()]",
            "n = 4\ndef f():\n    return n",
            "model = [*model, f()]",
        ],
        ["n = 4", "def f():", "    return n", "model = [f()]", "model = [*model, f()]"],
    ),
    "the same change twice": (
        ["model = [1]", "model = model * 2", "model = model * 2"],
        ["model = [1]", "model = model * 2", "model = model * 2"],
    ),
    "a definition that was patched is made anew": (
        ["class A:\n    n = 1", "A.n = 2", "a = A.n", "class A:\n    n = 1", "model = [a, A.n]"],
        [
            "class A:",
            "    n = 1",
            "A.n = 2",
            "a = A.n",
            "class A:",
            "    n = 1",
            "model = [a, A.n]",
        ],
    ),
    "decorators, defaults, bases, class bodies": (
        [
            "def deco(f):\n    return f",
            "SIZE = 3",
            "class Base:\n    pass",
            "@deco\ndef f(n=SIZE):\n    return n",
            "class Net(Base):\n    SIZE = SIZE\n    def go(self): return f()",
            "model = [Net().go(), Net.SIZE]",
        ],
        [
            "def deco(f):",
            "    return f",
            "SIZE = 3",
            "class Base:",
            "    pass",
            "@deco",
            "def f(n=SIZE):",
            "    return n",
            "class Net(Base):",
            "    SIZE = SIZE",
            "    def go(self): return f()",
            "model = [Net().go(), Net.SIZE]",
        ],
    ),
    "a local name is no use": (
        ["x = 1", "def f(x):\n    y = [x for x in (1, 2)]\n    return y", "model = f(3)"],
        ["def f(x):", "    y = [x for x in (1, 2)]", "    return y", "model = f(3)"],
    ),
    "annotations count": (["T = int", "def f(x: T) -> T:\n    return x", "model = [f(1)]"], None),
    "text annotations count": (
        ["T = int", "def f(x: 'T') -> 'T':\n    return x", "model = [f(1)]"],
        ["T = int", "def f(x: 'T') -> 'T':", "    return x", "model = [f(1)]"],
    ),
    "text annotations keep only definitions": (
        [
            "import random\nT = [random.random()]",
            "def f(x: 'T', y: 'wb.Run'):\n    return x",
            "model = [f(1, 2)]",
        ],
        ["def f(x: 'T', y: 'wb.Run'):", "    return x", "model = [f(1, 2)]"],
    ),
    "globals bound by a function": (
        ["def load():\n    global data\n    data = [1]", "load()", "model = data"],
        ["def load():", "    global data", "    data = [1]", "load()", "model = data"],
    ),
    "monkeypatched": (
        [
            "class Net:\n    def go(self): return 1",
            "def go(self):\n    return 2",
            "Net.go = go",
            "model = [Net().go()]",
        ],
        [
            "class Net:",
            "    def go(self): return 1",
            "def go(self):",
            "    return 2",
            "Net.go = go",
            "model = [Net().go()]",
        ],
    ),
    "deleted after use": (
        ["tmp = [1]", "model = [*tmp]", "del tmp"],
        ["tmp = [1]", "model = [*tmp]"],
    ),
    "a lambda used at once": (
        ["k = 2\nmodel = list(map(lambda v: v * k, [1]))\ndel k"],
        ["k = 2", "model = list(map(lambda v: v * k, [1]))"],
    ),
    "the bench is not in it": (
        [
            "model = [1]",
            "bench = wb.Workbench(model)\nbench.set(lr=1)\nrun = bench.fit().result()\nprint(run)",
        ],
        ["model = [1]"],
    ),
    "one line, several statements": (
        ["x = 1; junk = 2; model = [x]  # end", "y = 2;  # quiet"],
        ["x = 1", "model = [x]  # end"],
    ),
    "texts of several lines": (
        ['model = ["""a\n  b\n# c""", 2]'],
        ['model = ["""a', "  b", '# c""", 2]'],
    ),
    "comments right above": (
        ["# %% a cell\n# far\n\n# the model\n# of all\nmodel = [1]  # here"],
        ["# the model", "# of all", "model = [1]  # here"],
    ),
    "unicode": (["größe = 'ü'; model = [größe]  # é"], ["größe = 'ü'", "model = [größe]  # é"]),
    "a cell that raised": (["x = [1]\n1 / 0\nx = [2]", "model = x"], ["x = [1]", "model = x"]),
    "match": (
        ["match [1, 2]:\n    case [a, *rest]:\n        x = a", "model = [x]"],
        ["match [1, 2]:", "    case [a, *rest]:", "        x = a", "model = [x]"],
    ),
    "a cell that does not parse": (["model = [1]"], ["model = [1]"]),
    "os.environ": (
        ["import os\nos.environ['WB_TEST'] = '1'\nmodel = [os.environ['WB_TEST']]"],
        ["os.environ['WB_TEST'] = '1'", "model = [os.environ['WB_TEST']]"],
    ),
    "one's own seeding": (
        ["import random\ndef fix(n):\n    random.seed(n)", "fix(3)", "model = [random.random()]"],
        ["def fix(n):", "    random.seed(n)", "fix(3)", "model = [random.random()]"],
    ),
    "a method of a package's object, inside an expression": (
        [
            "from tokenizers import Tokenizer, models\ntok = Tokenizer(models.WordLevel({'a': 0}, unk_token='a'))",
            "added = tok.add_tokens(['x', 'y'])",
            "model = [tok.get_vocab_size()]",
        ],
        [
            "tok = Tokenizer(models.WordLevel({'a': 0}, unk_token='a'))",
            "added = tok.add_tokens(['x', 'y'])",
            "model = [tok.get_vocab_size()]",
        ],
    ),
    "classes in a table": (
        [
            "KNOWN = {}\ndef register(name):\n    def wrap(cls):\n        KNOWN[name] = cls\n        return cls\n    return wrap",
            "@register('a')\nclass A: pass",
            "class B: pass\nregister('b')(B)",
            "class C: pass",
            "model = [KNOWN['a'].__name__, len(KNOWN)]",
        ],
        [
            "KNOWN = {}",
            "def register(name):",
            "    def wrap(cls):",
            "        KNOWN[name] = cls",
            "        return cls",
            "    return wrap",
            "@register('a')",
            "class A: pass",
            "class B: pass",
            "register('b')(B)",
            "model = [KNOWN['a'].__name__, len(KNOWN)]",
        ],
    ),
    "classes in an object": (
        [
            "class Table:\n    def __init__(self): self.known = []\n    def add(self, cls): self.known.append(cls); return cls\nTABLE = Table()",
            "@TABLE.add\nclass A: pass",
            "model = [TABLE.known[0].__name__]",
        ],
        [
            "class Table:",
            "    def __init__(self): self.known = []",
            "    def add(self, cls): self.known.append(cls); return cls",
            "TABLE = Table()",
            "@TABLE.add",
            "class A: pass",
            "model = [TABLE.known[0].__name__]",
        ],
    ),
    "classes that their base lists": (
        [
            "class Base:\n    known = []\n    def __init_subclass__(cls): Base.known.append(cls)",
            "class A(Base): pass",
            "class C: pass",
            "model = [Base.known[0].__name__]",
        ],
        [
            "class Base:",
            "    known = []",
            "    def __init_subclass__(cls): Base.known.append(cls)",
            "class A(Base): pass",
            "model = [Base.known[0].__name__]",
        ],
    ),
    "methods that a decorator gives to a class": (
        [
            "class A:\n    pass",
            "def add_to(cls):\n    def wrap(f): setattr(cls, f.__name__, f)\n    return wrap",
            "@add_to(A)\ndef size(self): return 3",
            "class B: pass\n@add_to(B)\ndef size(self): return 4",
            "model = [A().size()]",
        ],
        [
            "class A:",
            "    pass",
            "def add_to(cls):",
            "    def wrap(f): setattr(cls, f.__name__, f)",
            "    return wrap",
            "@add_to(A)",
            "def size(self): return 3",
            "model = [A().size()]",
        ],
    ),
    "changed by a method under another name": (
        [
            "model = []",
            "add = model.append",
            "add(1)",
            "[add(i) for i in (2, 3)]",
            "other = []\ngrow = other.extend\ngrow([1])",
        ],
        ["model = []", "add = model.append", "add(1)", "[add(i) for i in (2, 3)]"],
    ),
    "a function's own name for a method": (
        ["model = []", "def fill(rows):\n    add = rows.append\n    add(1)", "fill(model)"],
        ["model = []", "def fill(rows):", "    add = rows.append", "    add(1)", "fill(model)"],
    ),
    "a counter in a closure": (
        [
            "def counter():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    return up",
            "up = counter()",
            "up()",
            "first = up()",
            "model = [up()]",
        ],
        [
            "def counter():",
            "    n = 0",
            "    def up():",
            "        nonlocal n",
            "        n += 1",
            "        return n",
            "    return up",
            "up = counter()",
            "up()",
            "first = up()",
            "model = [up()]",
        ],
    ),
    "an object that its call changes": (
        [
            "class Up:\n    n = 0\n    def __call__(self): self.n += 1; return self.n",
            "up = Up()",
            "up()",
            "model = [up()]",
        ],
        [
            "class Up:",
            "    n = 0",
            "    def __call__(self): self.n += 1; return self.n",
            "up = Up()",
            "up()",
            "model = [up()]",
        ],
    ),
    "a list as default": (
        [
            "def collect(x, into=[]):\n    into.append(x)\n    return into",
            "collect(1)",
            "model = [*collect(2)]",
        ],
        [
            "def collect(x, into=[]):",
            "    into.append(x)",
            "    return into",
            "collect(1)",
            "model = [*collect(2)]",
        ],
    ),
    "two names at once": (
        ["a = model = [1]", "a[0] = 2", "b = c = [1]", "b[0] = 2"],
        ["a = model = [1]", "a[0] = 2"],
    ),
    "vars, out=": (
        [
            "import numpy as np\nclass Table:\n    def __init__(self): self.rows = np.ones(2)",
            "table = Table()",
            "vars(table)['extra'] = 3",
            "np.multiply(table.rows, 2, out=table.rows)",
            "table.rows + 1",
            "model = [table.extra, *table.rows]",
        ],
        [
            "class Table:",
            "    def __init__(self): self.rows = np.ones(2)",
            "table = Table()",
            "vars(table)['extra'] = 3",
            "np.multiply(table.rows, 2, out=table.rows)",
            "model = [table.extra, *table.rows]",
        ],
    ),
    "a handle of a change": (
        [
            "class Net:\n    def __init__(self): self.hooks = []\n    def add_module(self, f): self.hooks.append(f); return Handle(self)",
            "class Handle:\n    def __init__(self, of): self.of = of\n    def remove(self): self.of.hooks.clear()",
            "net = Net()",
            "h = net.add_module(1)",
            "h.remove()",
            "model = [*net.hooks]",
        ],
        [
            "class Net:",
            "    def __init__(self): self.hooks = []",
            "    def add_module(self, f): self.hooks.append(f); return Handle(self)",
            "class Handle:",
            "    def __init__(self, of): self.of = of",
            "    def remove(self): self.of.hooks.clear()",
            "net = Net()",
            "h = net.add_module(1)",
            "h.remove()",
            "model = [*net.hooks]",
        ],
    ),
    "manual training in a loop that changes nothing needed": (
        ["model = [1, 2]", "losses = []\nfor x in model:\n    losses.append(x * 2)\n    print(x)"],
        ["model = [1, 2]"],
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices(name: str) -> None:
    cells, expected = SLICES[name]
    last = cells[-1] if "Workbench" in cells[-1] else cells[-1] + "\n" + MAKE
    found = code(*cells[:-1], last)
    if expected is not None:
        assert [line for line in found.splitlines() if line.strip()] == expected
    else:
        assert cells[0] in found


@pytest.mark.parametrize(
    ("after", "name", "kept"),
    [
        (
            "model = torch.nn.Sequential(torch.nn.Linear(2, 2))\nmodel.others = [other]",
            "other",
            True,
        ),
        # the script reads its weights from the run
        ("model = other\nmodel.scale = 2", "other", False),
        ("model.scale = 2", "model", False),
        ("import copy\nother = copy.deepcopy(model)\nmodel.others = [other]", "model", True),
        (
            "other = model\nmodel = torch.nn.Sequential(torch.nn.Linear(2, 2))\nmodel.others = [other]",
            "model",
            True,
        ),
    ],
)
def test_training_by_hand_is_kept_where_its_weights_matter(
    after: str, name: str, kept: bool
) -> None:
    made = f"import torch\ntorch.manual_seed(0)\n{name} = torch.nn.Linear(2, 2)"
    trained = f"opt = torch.optim.SGD({name}.parameters(), lr=0.1)\nfor _ in range(2):\n    {name}(torch.ones(2)).sum().backward()\n    opt.step()"
    outcome = slice_cells(WB, made, trained, after, MAKE)
    assert (trained in outcome.sliced.code) == kept
    if kept:
        (given,), (again,) = outcome.given["model"].others, outcome.again["model"].others
        assert torch.equal(given.weight, again.weight)


ANNOTATED = """\
from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from decimal import Decimal

import workbench as wb

if typing.TYPE_CHECKING:
    from fractions import Fraction, gcd
else:
    SIZE = 3

Batch = tuple[Decimal, ...]


class Later:
    unused: Mapping[str, int]


class Net:
    def __init__(self, make: Callable[[], int] | None = None) -> None:
        self.n: Fraction = SIZE

    def __call__(self, batch: Batch) -> "Later":
        return batch
"""


def test_what_postponed_annotations_name_is_kept() -> None:
    """Imports, aliases and classes; what only type checkers import stays under `if TYPE_CHECKING:`."""
    sliced = slice_cells(ANNOTATED, "bench = wb.Workbench(Net())").sliced
    assert sliced.imports.split("\n")[2:-1] == [
        "from collections.abc import Callable, Mapping", "from decimal import Decimal", "from typing import TYPE_CHECKING",
    ]  # fmt: skip
    assert sliced.code.startswith(
        "if TYPE_CHECKING:\n    from fractions import Fraction\n\nSIZE = 3"
    )
    assert "Batch = tuple" in sliced.code
    assert "class Later" in sliced.code
    assert {"Fraction", "Batch", "Later", "TYPE_CHECKING"} <= sliced.names


def test_arguments_may_be_calls_and_need_what_they_read() -> None:
    outcome = slice_cells(
        WB
        + "class Net:\n    def __init__(self, n): self.n = n\n    def __eq__(self, o): return self.n == o.n",
        "def make_set(n):\n    return list(range(n))\nSIZE = 3\nJUNK = 4",
        "bench = wb.Workbench(Net(SIZE),\n    train=make_set(\n        SIZE,\n    ),\n    val=[1] +\n        [2],\n    lr=JUNK)",
    )
    assert outcome.again["train"] == [0, 1, 2]
    assert outcome.again["val"] == [1, 2]
    assert outcome.sliced.arguments["lr"] == "JUNK"
    assert "JUNK" not in outcome.sliced.code, "settings have their values in the run's record"


def test_what_a_lambda_in_the_call_reads_later_is_there() -> None:
    outcome = slice_cells(WB + "SCALE = 2", "bench = wb.Workbench([1], loss=lambda a: a * SCALE)")
    assert outcome.again["loss"](3) == 6


def test_several_statements_before_the_call_and_two_calls_in_one_cell() -> None:
    outcome = slice_cells(WB, "a = [1]\nfirst = wb.Workbench(a)\nb = [2]\nsecond = wb.Workbench(b)")
    assert outcome.sliced.code == "b = [2]\n"


def test_functions_read_what_the_run_read() -> None:
    """Between the Workbench and its fit a helper was written anew, and a list changed; the call took what was there."""
    outcome = slice_cells(
        WB
        + "SCALE, MORE = 2, [1]\ndef helper(a):\n    return a * SCALE\ndef loss(a):\n    return helper(a) + MORE[0]\nx = [1]",
        "bench = wb.Workbench(x, loss=loss)",
        then=[
            "import json",
            "def helper(a):\n    return a * SCALE + 0.5",
            "MORE[0] = 100",
            "x = [2]\nUNUSED = 3\ndef loss(a):\n    return 0",
            "SCALE = 3",
            "bench.set(lr=SCALE)",
        ],
    )
    assert outcome.again["model"] == [1]
    assert outcome.again["loss"](1) == 103.5
    assert "UNUSED" not in outcome.sliced.code
    assert outcome.sliced.code.count("def ") == 2, "neither the former helper nor the new loss"


def test_what_a_workbench_takes_is_not_changed_by_it() -> None:
    cells = (
        WB
        + "import random\nclass Env:\n    def __init__(self): self.rng = random.Random(0)\nclass Data:\n    def __init__(self, env): self.env = env\nenv = Env()"
    )
    found = slice_cells(
        cells,
        "first = wb.Workbench([1], train=Data(env))",
        "bench = wb.Workbench([2], train=Data(env))",
        then=["bench.fit()"],
    )
    assert "Workbench" not in found.sliced.code


def test_later_cells_do_not_matter() -> None:
    site = run_cells(WB, "x = 1\nmodel = [x]\nbench = wb.Workbench(model)")
    assert execute(slice_call(site))["model"] == [1]


def test_imports_are_split_joined_and_sorted() -> None:
    outcome = slice_cells(
        WB
        + "import os, sys, json as js\nfrom pathlib import Path, PurePath\nimport numpy as np\nimport os",
        "from collections import (OrderedDict,\n    Counter)\nfrom pathlib import PurePosixPath",
        "bench = wb.Workbench([os.sep, js.dumps(1), PurePath('a'), PurePosixPath('b'), Counter(), np.float64(1)])",
    )
    assert outcome.sliced.imports == (
        "import json as js\nimport os\nfrom collections import Counter\nfrom pathlib import PurePath, PurePosixPath\n"
        "\nimport numpy as np\n"
    )
    assert outcome.sliced.modules == {"numpy"}


def test_submodule_imports_add_to_one_another() -> None:
    outcome = slice_cells(
        WB + "import xml.dom.minidom\nimport xml.sax\nimport xml.etree.ElementTree",
        "bench = wb.Workbench([xml.etree.ElementTree.fromstring('<a/>').tag, xml.dom.minidom.Node.ELEMENT_NODE])",
    )
    assert "import xml.dom.minidom\n" in outcome.sliced.imports
    assert "import xml.etree.ElementTree\n" in outcome.sliced.imports


def test_a_name_imported_and_bound_stays_in_order() -> None:
    outcome = slice_cells(
        WB + "from math import floor",
        "a = floor(1.5)\ndef floor(x):\n    return -1",
        "bench = wb.Workbench([a, floor(1.5)])",
    )
    assert outcome.again["model"] == [1, -1]


def test_environment_set_before_an_import_stays_before_it() -> None:
    sliced = slice_cells(
        WB + "import os", "os.environ['WB_X'] = '1'\nimport json", "wb.Workbench([json.dumps(1)])"
    ).sliced
    assert sliced.imports == "import os\n"
    assert sliced.code == "os.environ['WB_X'] = '1'\nimport json\n"


def test_star_imports_stay_if_they_are_needed() -> None:
    outcome = slice_cells(
        WB + "from math import *\nfrom json import *", "bench = wb.Workbench([sqrt(4.0)])"
    )
    assert outcome.sliced.imports == "from math import *\n"
    assert outcome.again["model"] == [2.0]
    assert "cos" in outcome.sliced.names


def test_future_annotations_come_first_and_hold_for_later_cells() -> None:
    outcome = slice_cells(
        WB,
        "from __future__ import annotations\nT = int\ndef f(x: T, y: NoSuch) -> T:\n    return x",
        "import os\nbench = wb.Workbench([f(1, 2), os.sep])",
    )
    assert outcome.sliced.imports == "from __future__ import annotations\n\nimport os\n"
    assert "T = int" in outcome.sliced.code


def test_dataclass_fields_keep_their_types_under_future_annotations() -> None:
    outcome = slice_cells(
        WB + "from dataclasses import dataclass\nfrom pathlib import Path",
        "from __future__ import annotations\n@dataclass\nclass Config:\n    path: Path = 'a'\n    other: NoSuch = 1",
        "bench = wb.Workbench([Config().path])",
    )
    assert "from pathlib import Path" in outcome.sliced.imports


def test_numpy_and_scikit_learn_state() -> None:
    outcome = slice_cells(
        WB + "import numpy as np\nfrom sklearn.preprocessing import StandardScaler",
        "rng = np.random.default_rng(0)\nx = rng.normal(size=(8, 2))\ntest = rng.normal(size=(4, 2))\nx.mean()",
        "scaler = StandardScaler()\nx_scaled = scaler.fit_transform(x)\nx_test = scaler.transform(test)",
        "x[0] = 0\nnp.set_printoptions(precision=2)\nbench = wb.Workbench(None, val=x_test)",
    )
    np.testing.assert_array_equal(outcome.given["val"], outcome.again["val"])
    assert "mean" not in outcome.sliced.code
    assert "printoptions" not in outcome.sliced.code


def test_process_state_is_kept_and_repeated_runs_of_it_are_not() -> None:
    sliced = slice_cells(
        WB + "import torch\ntorch.manual_seed(0)\ntorch.set_printoptions(precision=2)",
        WB + "import torch\ntorch.manual_seed(0)",
        "torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark\n_ = torch.manual_seed(3)\ntorch.initial_seed()",
        "if torch.cuda.is_available():\n    torch.cuda.manual_seed_all(0)",
        "bench = wb.Workbench([1])",
    ).sliced
    assert sliced.code == (
        "torch.manual_seed(0)\n\n"
        "torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark\n_ = torch.manual_seed(3)\n\n"
        "if torch.cuda.is_available():\n    torch.cuda.manual_seed_all(0)\n"
    )


def test_exploring_a_model_is_left_out_but_building_it_by_a_first_call_is_not() -> None:
    start = WB + "import torch\nfrom torch import nn"
    plain = slice_cells(
        start,
        "model = nn.Sequential(nn.Linear(2, 3))\nx = torch.zeros(1, 2)",
        "model(x)\nout = model(x)\nprint(model(x))\nn = sum(p.numel() for p in model.parameters())\nmodel",
        MAKE,
    ).sliced
    assert plain.code == "model = nn.Sequential(nn.Linear(2, 3))\n"
    lazy = slice_cells(
        start, "model = nn.Sequential(nn.LazyLinear(3))", "model(torch.zeros(1, 2))", MAKE
    ).sliced
    assert lazy.code == "model = nn.Sequential(nn.LazyLinear(3))\n\nmodel(torch.zeros(1, 2))\n"


def test_what_changes_a_model() -> None:
    sliced = slice_cells(
        WB + "import torch\nfrom torch import nn",
        "def init(m):\n    if isinstance(m, nn.Linear):\n        nn.init.zeros_(m.weight)",
        "model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))",
        "model.apply(init)\nmodel.head = nn.Linear(3, 1)\nhandle = model.register_forward_hook(lambda m, i, o: None)",
        "with torch.no_grad():\n    model[0].weight.fill_(2)",
        "first = model[0]\nfirst.bias = None\nfor layer in model.modules():\n    if isinstance(layer, nn.Dropout):\n        layer.p = 0.1",
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)",
        MAKE,
    ).sliced
    for text in (
        "apply(init)",
        "model.head",
        "register_forward_hook",
        "fill_",
        "first.bias",
        "layer.p",
    ):
        assert text in sliced.code
    assert "SGD" not in sliced.code


CHANGES = [
    'for name in ("0",):\n    for p in getattr(model, name).parameters():\n        p.requires_grad = False',
    'getattr(model, "0").weight.data.zero_()',
    "vars(model)['scale'] = 2.0",
    'part = operator.attrgetter("0")(model)\npart.scale = 2.0',
    "list(map(lambda p: p.requires_grad_(False), model.parameters()))",
    "frozen = list(map(freeze, model.parameters()))",
    "_ = [setattr(m, 'scale', 2.0) for m in (model,)]",
    "_ = [p.requires_grad_(False) for p in model.parameters()]",
    "_ = {name: p.fill_(1) for name, p in model.named_buffers()}",
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_part_that_has_no_name_in_the_code(change: str) -> None:
    start = "import operator\nfrom torch import nn\nmodel = nn.Sequential(nn.Linear(2, 3))\ndef freeze(p):\n    p.requires_grad = False"
    assert change.replace("'", '"') in slice_cells(
        f"{WB}{start}", change, MAKE
    ).sliced.code.replace("'", '"')


@pytest.mark.parametrize("look", [
    "sizes = [p.numel() for p in model.parameters()]", "kinds = list(map(type, model.children()))", "print(getattr(model, '0'))",
    "total = sum(map(lambda p: p.numel(), model.parameters()))", "shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}",
])  # fmt: skip
def test_looking_at_such_parts_is_left_out(look: str) -> None:
    sliced = slice_cells(
        f"{WB}from torch import nn\nmodel = nn.Sequential(nn.Linear(2, 3))", look, MAKE
    ).sliced
    assert sliced.code == "model = nn.Sequential(nn.Linear(2, 3))\n"


def test_a_function_of_a_package_may_change_what_it_is_given_also_where_its_result_is_kept() -> (
    None
):
    sliced = slice_cells(
        WB
        + "import torch\nfrom torch import nn\nfrom torch.nn.utils import prune\nmodel = nn.Sequential(nn.Linear(4, 4))",
        "pruned = prune.l1_unstructured(model[0], 'weight', 0.5)",
        "optimizer = torch.optim.SGD(model.parameters())\nfor x in torch.utils.data.DataLoader(torch.ones(4, 4), 2):\n    out = model(x.to('cpu'))",
        MAKE,
    ).sliced
    assert (
        sliced.code
        == "model = nn.Sequential(nn.Linear(4, 4))\n\npruned = prune.l1_unstructured(model[0], 'weight', 0.5)\n"
    )


def test_literals_are_bounded() -> None:
    around: list[object] = [1]
    around.append({"again": around})
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    wide = [[[[0] * 100] * 100] * 100] * 100
    assert [literal(value) for value in (around, deep, wide, 10**5000)] == [None] * 4
    row = (1, "a", None)
    assert (
        literal([row, row, {row: [2.0]}])
        == "[(1, 'a', None), (1, 'a', None), {(1, 'a', None): [2.0]}]"
    )
    assert literal([object(), wide]) is None


def test_a_list_that_holds_itself_does_not_end_the_capture() -> None:
    assert values("a = []\na.append(a)\nbig = 10**5000\nmodel = [1]", MAKE)


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("given = {'train': [1], 'loss': abs, 'lr': 0.1}", "model, **given"),
        ("given = {'train': [1]}\ngiven['loss'] = abs\nsettings = dict(lr=0.1)", "model, **given, **settings"),
        ("given = {'model': [3], 'train': [1], 'loss': abs}", "**given, lr=0.1"),
        ("settings = {'lr': 0.1}", "model, **{'train': [1], **settings}, **dict(loss=abs)"),
        ("class C:\n    kept = {'a': {'train': [1], 'loss': abs}}", "model, **C.kept['a']"),
        ("parts = [[2]]", "*parts, train=[1], loss=abs"), ("", "*[model], train=[1], loss=abs"),
        ("def made():\n    return {'lr': 0.1}", "model, train=[1], loss=abs, **made()"),
        ("settings = {'lr': 0.1}", "model, train=[1], loss=abs, **{name: value for name, value in settings.items()}"),
    ],
)  # fmt: skip
def test_arguments_that_a_dict_or_a_list_gives(before: str, call: str) -> None:
    outcome = slice_cells(WB, "model = [1]", before, f"bench = wb.Workbench({call})")
    objects = {name: value for name, value in outcome.given.items() if name != "lr"}
    assert outcome.again == objects
    assert objects.keys() == {"model", "train", "loss"}
