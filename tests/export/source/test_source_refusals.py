"""What cannot be written is refused by name, with a remedy."""

from __future__ import annotations

import pytest

from tests.export.source.export_slicing import run_cells
from workbench.export.source.capture import CallSite
from workbench.export.source.source import ExportError, slice_call

WB = "import workbench as wb\n"

# Cells, then the texts that the message must have.
REFUSALS = {
    "no definition": (
        ["exec('scale = 2')", "model = [scale]\nwb.Workbench(model)"],
        [
            "`scale` is used by `model = [scale]` (In [3], line 1)",
            "%run or %store",
            "Define it in plain code",
        ],
    ),
    "no definition, in the call": (
        ["exec('scale = 2')", "wb.Workbench(scale)"],
        ["`scale` is used by the Workbench call"],
    ),
    "no definition, in a function": (
        ["exec('scale = 2')", "def f():\n    return scale", "wb.Workbench([f()])"],
        ["`scale` is used by `def f():` (In [3], line 1)"],
    ),
    "deleted": (
        ["k = 1\ndef f():\n    return k", "del k", "wb.Workbench([f])"],
        ["`k` is used by `def f():`", "`del k` (In [3], line 1) deleted it"],
    ),
    "after an error": (
        ["1 / 0\nx = 1", "exec('x = 2')", "wb.Workbench([x])"],
        ["`x` is used by the Workbench call", "In [2] raised an error before"],
    ),
    "from the workbench": (
        ["bench = wb.Workbench([1])", "model = bench.model", "wb.Workbench(model)"],
        [
            "`model` is needed by the Workbench call",
            "comes from the workbench",
            "`model = bench.model` (In [3], line 1)",
        ],
    ),
    "from the workbench, through a function": (
        [
            "def go(m):\n    return wb.Workbench(m)",
            "bench = go([1])",
            "model = bench.model",
            "wb.Workbench(model)",
        ],
        ["`model` is needed", "comes from the workbench"],
    ),
    "from the workbench, used by a function": (
        ["def loss(a):\n    return wb.Workbench", "wb.Workbench([1], loss=loss)"],
        ["`wb` is needed by `def loss(a):` (In [2], line 1)", "comes from the workbench"],
    ),
    "keywords in bulk": (
        ["def more():\n    return {'train': [1]}", "wb.Workbench([1], **more())"],
        ["`**more()`", "`given = more()`"],
    ),
    "positions in bulk": (
        ["wb.Workbench(*list([[1]]))"],
        ["`*list([[1]])`", "`given = list([[1]])`"],
    ),
    "a walrus in the call": (
        ["wb.Workbench(m := [1], train=m)"],
        ["`(m := [1])`", "Define `m` before"],
    ),
    "called through another name": (
        [
            "import functools\nmake = functools.partial(wb.Workbench, [1])",
            "wb_Workbench = make\nwb_Workbench(train=[2])",
        ],
        ["makes it through `wb_Workbench(…)`", "Call wb.Workbench(…) itself"],
    ),
    "in a class body": (
        ["class A:\n    bench = wb.Workbench([1])"],
        ["body of class A", "Make it in a cell"],
    ),
    "a loop that carries": (
        ["model = []", "for i in range(3):\n    model.append(i)\n    bench = wb.Workbench(model)"],
        ["`i` is needed by `model.append(i)`", "is a loop variable"],
    ),
    "a loop variable that is no literal": (
        ["for x in [object()]:\n    bench = wb.Workbench([x])"],
        ["`x` is needed by the Workbench call", "is a loop variable", "no plain number"],
    ),
    "__file__": (
        ["__file__ = 'a'\ndel __file__", "def f():\n    return __file__", "wb.Workbench([f])"],
        ["__file__", "path as text"],
    ),
    "display": (
        ["def f():\n    display(1)", "wb.Workbench([f])"],
        ["`display`", "from IPython.display import display"],
    ),
    "get_ipython": (
        [
            "get_ipython = lambda: [1]",
            "del get_ipython\nexec('files = 1')",
            "wb.Workbench([files])",
        ],
        ["`files`"],
    ),
    "the command line": (
        [
            "class Parser:\n    def parse_args(self): return 1\nargs = Parser().parse_args()",
            "wb.Workbench([args])",
        ],
        [
            "`args = Parser().parse_args()` (In [2], line 3) reads the command line",
            "Write the values",
        ],
    ),
    "an output of the notebook": (
        ["exec('_ = 1')", "model = [_]", "wb.Workbench(model)"],
        ["`_`", "only a notebook has it"],
    ),
    "an import inside a function": (
        [
            "def f():\n    from workbench.settings import Settings\n    return Settings",
            "wb.Workbench([f])",
        ],
        ["`workbench.settings` is imported by `def f():` (In [2], line 1)", "top level"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    cells, texts = REFUSALS[name]
    site = run_cells(WB, *cells)
    with pytest.raises(ExportError) as caught:
        slice_call(site)
    for text in texts:
        assert text in str(caught.value)


def test_the_model_may_have_been_trained_before() -> None:
    site = run_cells(
        WB,
        "net = [1]\nfirst = wb.Workbench(net)\nfirst.fit().result()",
        "bench = wb.Workbench(net)",
    )
    assert slice_call(site).code == "net = [1]\n", "the script reads its weights from the run"


def test_await_is_refused_where_it_is_needed() -> None:
    pieces = run_cells(WB, "x = [1]\nbench = wb.Workbench(x)")
    awaited = pieces.pieces[1].source.replace("x = [1]", "x = await get()")
    site = CallSite(
        (pieces.pieces[0], type(pieces.pieces[1])("In [2]", awaited)), pieces.call, pieces.reached
    )
    with pytest.raises(
        ExportError,
        match=r"`x = await get\(\)` \(In \[2\], line 1\) cannot be in a script: it uses `await`.*`torch.save\(x, 'x.pt'\)`",
    ):
        slice_call(site)


def test_without_source() -> None:
    namespace: dict[str, object] = {}
    exec(
        "import sys\nfrom workbench.export.source.capture import CallSite\n"
        "def make():\n    return CallSite.capture(sys._getframe())\nsite = make()",
        namespace,
    )
    site = namespace["site"]
    assert isinstance(site, CallSite)
    with pytest.raises(
        ExportError,
        match=r"no source to read \(python -c, exec, or an interactive prompt\).*notebook cell or in a \.py file",
    ):
        slice_call(site)


def test_a_shell_command_is_refused_by_name() -> None:
    cells = run_cells(
        WB,
        "get_ipython = type('S', (), {'getoutput': lambda s, c: [c]})\nfiles = get_ipython().getoutput('ls')",
        "wb.Workbench(files)",
    )
    pieces = list(cells.pieces)
    pieces[1] = type(pieces[1])("In [2]", "files = get_ipython().getoutput('ls')")
    with pytest.raises(
        ExportError,
        match=r"`get_ipython` is used by `files = get_ipython\(\).getoutput\('ls'\)`.*only a notebook has it",
    ):
        slice_call(CallSite(tuple(pieces), cells.call, cells.reached))
