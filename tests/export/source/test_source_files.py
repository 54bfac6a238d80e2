"""Call sites in files: at the top level, in functions, in loops; and the user's own modules."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.export.source.export_slicing import Outcome, replay, run_file
from workbench.export.source.source import ExportError, slice_call


def replay_file(path: Path, text: str) -> Outcome:
    bench = run_file(path, text)
    outcome = replay(bench.site, bench.given)
    assert outcome.again["model"] == outcome.given["model"]
    return outcome


def refused(path: Path, text: str) -> str:
    bench = run_file(path, text)
    with pytest.raises(ExportError) as caught:
        slice_call(bench.site)
    return str(caught.value)


def test_at_the_top_level(tmp_path: Path) -> None:
    outcome = replay_file(
        tmp_path / "train.py",
        '"""Docs."""\n\nimport os\nimport workbench as wb\n\nx = 1\ny = 2\nbench = wb.Workbench([x])\nx = 3\n',
    )
    assert (outcome.sliced.imports, outcome.sliced.code) == ("", "x = 1\n")


def test_the_workbench_in_one_import_with_others(tmp_path: Path) -> None:
    outcome = replay_file(
        tmp_path / "train.py",
        "import math, workbench as wb, json\n\n\ndef make():\n    return [math.pi, json.dumps(1)]\n\n\nmodel = make()\nbench = wb.Workbench(model)\n",
    )
    assert outcome.sliced.imports == "import json\nimport math\n"
    message = refused(
        tmp_path / "own.py",
        "import math, workbench as wb\nmodel = [math.pi, wb.Workbench([1])]\nbench = wb.Workbench(model)\n",
    )
    assert "comes from the workbench, which a script does not have" in message


def test_under_the_main_guard(tmp_path: Path) -> None:
    outcome = replay_file(
        tmp_path / "train.py",
        "import workbench as wb\nx = 1\nif __name__ == '__main__':\n    # two\n    y = [\n        x,\n    ]\n    bench = wb.Workbench(y)\n",
    )
    assert outcome.sliced.code == "x = 1\n\n# two\ny = [\n    x,\n]\n"


def test_in_a_function(tmp_path: Path) -> None:
    outcome = replay_file(
        tmp_path / "train.py",
        "import workbench as wb\nfrom pathlib import Path\n\nBASE = 10\n\n\ndef build(n):\n    return [n, BASE]\n\n\n"
        "def main(n, name='a', where=Path('d'), *, layers=(1, 2), verbose=False):\n"
        '    """Doc."""\n    import json\n    if verbose:\n        return None\n    text = """a\n    b"""\n'
        "    model = build(n) + [name, where, layers, json.dumps(1), text]\n    model.append(5)\n"
        "    bench = wb.Workbench(model, train=n)\n    model = None\n    return bench\n\n\n"
        "if __name__ == '__main__':\n    BASE = 11\n    main(3)\n    BASE = 12\n",
    )
    assert outcome.sliced.imports == "import json\nimport pathlib\n"
    assert outcome.sliced.code == (
        "def build(n):\n    return [n, BASE]\n\n\nBASE = 11\n\n"
        "n = 3\nname = 'a'\nwhere = pathlib.Path('d')\nlayers = (1, 2)\n\n"
        'text = """a\n    b"""\nmodel = build(n) + [name, where, layers, json.dumps(1), text]\nmodel.append(5)\n'
    )


def test_in_a_loop_and_in_a_comprehension(tmp_path: Path) -> None:
    outcome = replay_file(
        tmp_path / "train.py",
        "import workbench as wb\nfor n, (m, k) in [(1, (2, 3)), (4, (5, 6))]:\n    model = [n, k]\n    bench = wb.Workbench(model)\n",
    )
    assert outcome.sliced.code == "n = 4\nk = 6\n\nmodel = [n, k]\n"
    outcome = replay_file(
        tmp_path / "train2.py",
        "import workbench as wb\nbenches = [wb.Workbench([n]) for n in (1, 2)]\n",
    )
    assert outcome.sliced.code == "n = 2\n"


def test_with_and_try_around_the_call(tmp_path: Path) -> None:
    outcome = replay_file(
        tmp_path / "train.py",
        "import warnings, tempfile\nimport workbench as wb\n"
        "with warnings.catch_warnings():\n    x = [1]\n    try:\n        y = [2]\n        bench = wb.Workbench([x, y])\n"
        "    except KeyError:\n        pass\n",
    )
    assert outcome.sliced.code == "x = [1]\n\ny = [2]\n"


def test_refusals_in_functions(tmp_path: Path) -> None:
    message = refused(
        tmp_path / "a.py",
        "import workbench as wb\ndef main(model):\n    return wb.Workbench(model)\nmain(*[[object()]])\n",
    )
    assert "`model` is needed by the Workbench call, but is a parameter of main" in message
    assert "no plain number" in message
    message = refused(
        tmp_path / "c.py",
        "import workbench as wb\nn = 1\ndef f():\n    return n\ndef main():\n    n = [2]\n"
        "    return wb.Workbench([f, n])\nmain()\n",
    )
    assert "`n` means two things" in message
    assert "c.py, line 2 and c.py, line 6" in message
    message = refused(
        tmp_path / "d.py",
        "import workbench as wb\ndef main(items):\n    def inner():\n        return wb.Workbench([items, local])\n"
        "    local = object()\n    return inner\nmain([1])()\n",
    )
    assert "`local` is needed" in message
    assert "a variable of main" in message
    message = refused(
        tmp_path / "e.py",
        "import workbench as wb\nfrom pathlib import Path\nx = Path(__file__)\nb = wb.Workbench([x])\n",
    )
    assert "`__file__` is used by `x = Path(__file__)` (e.py, line 3)" in message


def test_a_closure_over_literals(tmp_path: Path) -> None:
    outcome = replay_file(
        tmp_path / "train.py",
        "import workbench as wb\ndef main(items):\n    def inner(n):\n        return wb.Workbench([items, n])\n    return inner(2)\nmain([1])\n",
    )
    assert outcome.sliced.code == "items = [1]\nn = 2\n"


def test_no_source_for_python_c() -> None:
    code = (
        "import sys; from workbench.export.source.source import *\n"
        "assert 'IPython' not in sys.modules and 'torch' not in sys.modules\n"
        "site = CallSite.capture(sys._getframe())\n"
        "assert 'IPython' not in sys.modules\n"
        "try: slice_call(site)\nexcept ExportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "The code of this Workbench cannot be exported: there is no source to read"
    )


# ---- the user's own modules ----------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


MYNET = '''"""Nets."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

# the depth
DEPTH = 2
JUNK = 3


def scale(x: Decimal) -> Decimal:
    return math.floor(x) * DEPTH


class Net:
    def __init__(self, n):
        self.n = scale(n)

    def __eq__(self, other):
        return self.n == other.n


def unused():
    return JUNK


if __name__ == "__main__":
    DEPTH = 99
'''


def test_own_modules_are_written_out(home: Path) -> None:
    (home / "wbt_mynet.py").write_text(MYNET)
    outcome = replay_file(
        home / "train.py",
        "import workbench as wb\nfrom wbt_mynet import Net as Model, unused\nn = 3\nbench = wb.Workbench(Model(n))\n",
    )
    assert (
        outcome.sliced.imports
        == "from __future__ import annotations\n\nimport math\nfrom typing import TYPE_CHECKING\n"
    )
    assert outcome.sliced.code == (
        "if TYPE_CHECKING:\n    from decimal import Decimal\n\n# the depth\nDEPTH = 2\n\n\ndef scale(x: Decimal) -> Decimal:\n    return math.floor(x) * DEPTH\n\n\n"
        "class Net:\n    def __init__(self, n):\n        self.n = scale(n)\n\n"
        "    def __eq__(self, other):\n        return self.n == other.n\n\n\nModel = Net\n\nn = 3\n"
    )
    assert outcome.sliced.modules == set()


def test_names_of_own_modules_are_shortened(home: Path) -> None:
    (home / "wbt_helpers.py").write_text("K = 2\ndef make(n):\n    return [n * K]\n")
    outcome = replay_file(
        home / "train.py",
        "import workbench as wb\nimport wbt_helpers as h\n\ndef go(h):\n    return h.real\n\n"
        "x = h.make(3) + [h.K, 'é', h.K]\nbench = wb.Workbench([x, go(1)], train=h.make(1))\n",
    )
    assert "x = make(3) + [K, 'é', K]\n" in outcome.sliced.code
    assert "return h.real" in outcome.sliced.code
    assert outcome.sliced.arguments["train"] == "make(1)"
    assert outcome.again["train"] == [2]


def test_packages_with_relative_imports_and_re_exports(home: Path) -> None:
    package = home / "wbt_pkg"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from .nets import Net\nfrom math import floor\nOTHER = 1\n"
    )
    (package / "nets.py").write_text(
        "from . import parts\nfrom .base import Base\n\nclass Net(Base):\n    area = parts.size(2)\n"
    )
    (package / "base.py").write_text("class Base:\n    pass\n")
    (package / "parts.py").write_text("def size(n):\n    return n\n")
    outcome = replay_file(
        home / "train.py",
        "import workbench as wb\nfrom wbt_pkg import Net, floor\nfrom wbt_pkg.base import *\n"
        "bench = wb.Workbench([Net.area, Net.__mro__[1].__name__, floor(1.5), Base.__name__])\n",
    )
    assert outcome.sliced.imports == "from math import floor\n"
    assert outcome.sliced.code.count("class Base:") == 1


def test_refusals_of_own_modules(home: Path) -> None:
    (home / "wbt_one.py").write_text("from wbt_two import other\ndef scale(n):\n    return n\n")
    (home / "wbt_two.py").write_text(
        "def scale(n):\n    return 2 * n\ndef other(n):\n    return scale(n)\n"
    )
    (home / "wbt_here.py").write_text("from pathlib import Path\nROOT = Path(__file__).parent\n")
    (home / "wbt_sum.py").write_text("def total(x):\n    return sum(x)\n")
    start = "import workbench as wb\n"
    message = refused(
        home / "a.py",
        start + "from wbt_one import scale, other\nbench = wb.Workbench([scale(1), other(2)])\n",
    )
    assert "`scale` means two things" in message
    assert "wbt_one.py, line 2 and wbt_two.py, line 1" in message
    message = refused(
        home / "b.py",
        start
        + "from wbt_two import other\ndef scale():\n    pass\nbench = wb.Workbench([scale, other])\n",
    )
    assert "`scale` means two things" in message
    assert "Rename one of them" in message
    message = refused(
        home / "c.py", start + "from wbt_here import ROOT\nbench = wb.Workbench([ROOT])\n"
    )
    assert "`__file__` is used by `ROOT = Path(__file__).parent` (wbt_here.py, line 2)" in message
    message = refused(
        home / "d.py",
        start + "from wbt_sum import total\nsum = 3\nbench = wb.Workbench([total, sum])\n",
    )
    assert "`sum` means two things" in message
    assert "built-in" in message
    message = refused(home / "e.py", start + "import wbt_sum\nbench = wb.Workbench([wbt_sum])\n")
    assert "`wbt_sum` is used as a whole by the Workbench call" in message
    assert "from wbt_sum import …" in message
    message = refused(
        home / "f.py",
        start
        + "import wbt_sum\ndef f():\n    total = wbt_sum.total([1])\n    return total\nbench = wb.Workbench([f])\n",
    )
    assert "`wbt_sum.total` (f.py, line 3) cannot be shortened to `total`" in message
    message = refused(
        home / "g.py",
        start + "def f():\n    import wbt_sum\n    return wbt_sum\nbench = wb.Workbench([f])\n",
    )
    assert "`wbt_sum` is imported by `def f():`" in message
    assert "at the top level" in message


def test_a_module_edited_later_is_taken_as_it_was(home: Path) -> None:
    path = home / "wbt_late.py"
    path.write_text("N = 1\n")
    bench = run_file(
        home / "train.py",
        "import workbench as wb\nfrom wbt_late import N\nbench = wb.Workbench([N])\n",
    )
    path.write_text("N = 2\n")
    assert slice_call(bench.site).code == "N = 1\n"


def test_classes_of_the_workbench_are_written_out(home: Path) -> None:
    bench = run_file(
        home / "train.py",
        "import workbench as wb\nfrom workbench.task.protocol import Scores\n\n\nclass Mine(wb.Task):\n"
        "    def training_step(self, batch, batch_idx):\n        return Scores({}, 1.0)\n\n"
        "    def validation_step(self, batch, batch_idx, stage='val'):\n        return None\n\n"
        "    def configure(self, settings, updates):\n        return None\n\n\nbench = wb.Workbench(Mine())\n",
    )
    sliced = replay(bench.site, bench.given).sliced
    assert "class Task(abc.ABC):" in sliced.code
    assert "class Mine(Task):" in sliced.code
    assert "class Scores:" in sliced.code
    assert "workbench" not in sliced.imports


def test_an_own_class_that_only_annotations_name_is_written_out(home: Path) -> None:
    (home / "wbt_kinds.py").write_text("class Kind:\n    pass\n\n\nclass Other:\n    pass\n")
    outcome = replay_file(
        home / "main.py",
        "from typing import TYPE_CHECKING\nimport wbt_kinds\nimport workbench as wb\nif TYPE_CHECKING:\n    from wbt_kinds import Kind\n\n\n"
        "def make(kind: 'Kind | None' = None) -> list:\n    return [1]\n\n\nbench = wb.Workbench(make())\n",
    )
    assert "class Kind:" in outcome.sliced.code
    assert "class Other:" not in outcome.sliced.code
    assert outcome.sliced.imports == ""


def test_a_module_that_a_star_import_hands_on_means_one_thing(home: Path) -> None:
    (home / "wbt_layers.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.ones(2).tolist()\n"
    )
    outcome = replay_file(
        home / "main.py",
        "import workbench as wb\nimport torch\nfrom safetensors.torch import *\nfrom wbt_layers import make\n"
        "bench = wb.Workbench([make(), torch.ones(1).tolist()])\n",
    )
    assert outcome.again["model"] == [[1.0, 1.0], [1.0]]


def test_a_call_in_an_imported_module(home: Path) -> None:
    (home / "wbt_exp.py").write_text(
        "import workbench as wb\nfrom wbt_base import base\nN = 1\ndef make(n):\n    model = [base(n), N]\n"
        "    return wb.Workbench(model)\nN = 2\n"
    )
    (home / "wbt_base.py").write_text("def base(n):\n    return [n]\n")
    outcome = replay_file(home / "main.py", "from wbt_exp import make\nN = 9\nbench = make(4)\n")
    assert outcome.sliced.code == (
        "def base(n):\n    return [n]\n\n\nN = 2\n\nn = 4\n\nmodel = [base(n), N]\n"
    )


@pytest.mark.parametrize("names", ["*", "wb, base"])
def test_the_workbench_comes_from_an_own_module(home: Path, names: str) -> None:
    (home / "wbt_all.py").write_text(
        "import workbench as wb\nfrom wbt_base import base\nimport torch\n"
    )
    (home / "wbt_base.py").write_text("def base(n):\n    return [n]\n")
    outcome = replay_file(
        home / "main.py", f"from wbt_all import {names}\nx = base(1)\nbench = wb.Workbench(x)\n"
    )
    assert outcome.sliced.code == "def base(n):\n    return [n]\n\n\nx = base(1)\n"
    assert not outcome.sliced.differs


def test_changes_by_functions_of_an_own_module_are_kept(home: Path) -> None:
    (home / "wbt_reg.py").write_text(
        "KNOWN = {}\ndef register(name, value):\n    KNOWN[name] = value\ndef get(name):\n    return KNOWN[name]\n"
    )
    start = "import workbench as wb\nfrom wbt_reg import get, register\nregister('a', [1])\n"
    outcome = replay_file(home / "main.py", start + "bench = wb.Workbench(get('a'))\n")
    assert "register('a', [1])\n" in outcome.sliced.code
