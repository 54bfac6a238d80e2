"""The slice in a real kernel: cells, magics, errors, cells run twice; its code runs in a fresh process."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm import Warm

pytestmark = pytest.mark.usefixtures("forked_kernels")

nbclient = importlib.import_module("nbclient")
nbformat = importlib.import_module("nbformat")

HERE = Path(__file__).parent
PATIENT = {"timeout": 280, "startup_timeout": 280, "iopub_timeout": 120}
"""What a cell has printed is left out where it comes later than the last of these behind the cell's end."""

START = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport export_slicing\nexport_slicing.install()"
IMPORTS = "%matplotlib inline\nimport torch, json\nfrom torch import nn\nimport torch.nn.functional as F\nimport workbench as wb"
CONSTANT = "HIDDEN = 8  # units\n!echo hello\ntorch.manual_seed(0);"
HELPER = "def activate(x):\n    return F.relu(x) * GAIN"
NET = (
    "# The net.\nclass Net(nn.Module):\n    def __init__(self, inputs):\n        super().__init__()\n"
    "        self.body = nn.Linear(inputs, HIDDEN)\n        self.head = nn.Linear(HIDDEN, 2)\n\n"
    "    def forward(self, x):\n        return self.head(activate(self.body(x)))"
)
DATA = "%%time\nx = torch.randn(32, 4)\ny = (x.sum(1) > 0).long()\ntrain_set = torch.utils.data.TensorDataset(x, y)"
STATE = "h = lambda m: sum(float(p.double().sum()) for p in m.parameters())"
SHOW = "import json\nprint(json.dumps(['SLICE', export_slicing.tell(benches)]))"
TELL = (
    "def tell(benches):\n    from workbench.export.source.source import slice_call, ExportError\n    found = []\n"
    "    for bench in benches:\n        try:\n            s = slice_call(bench.site)\n"
    "            found.append([s.imports, s.code, s.arguments, sorted(s.names), sorted(s.modules)])\n"
    "        except ExportError as error:\n            found.append(str(error))\n    return found\nexport_slicing.tell = tell"
)


def run_notebook(*cells: str) -> tuple[list[Any], str]:
    """Run cells in a kernel, errors allowed; what the last cell tells, and all that was printed."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(c) for c in (START, TELL, *cells, SHOW)]
    )
    nbclient.NotebookClient(notebook, allow_errors=True, kernel_name="python3", **PATIENT).execute()
    texts = [
        out.get("text", "") or "\n".join(out.get("traceback", ()))
        for cell in notebook.cells
        for out in cell.outputs
    ]
    last = "".join(out.get("text", "") for out in notebook.cells[-1].outputs)
    assert "SLICE" in last, "\n".join(texts)
    return json.loads(last)[1], "\n".join(texts)


def test_a_notebook(without: Warm, tmp_path: Path) -> None:
    told, printed = run_notebook(
        IMPORTS,
        CONSTANT,
        HELPER,
        NET,
        DATA,
        DATA,
        "GAIN = 2.0",
        "unrelated = [w for w in 'abc']\nprint(unrelated)\nNet?",
        "model = Net(4)\n1 / 0\nmodel = None",
        "with torch.no_grad():\n    model.head.weight.mul_(2)",
        "out = model(x)\nout.shape",
        "scratch = 1\nbench = wb.Workbench(\n    model,\n    train=train_set,\n    loss=F.cross_entropy,\n    lr=1e-2,\n)",
        STATE,
        "benches = [bench]\nprint('SUM', h(model), float(x.sum()))",
        "GAIN = 3.0\nclass Net: pass\nx = None",
    )
    imports, code, arguments, names, modules = told[0]
    assert imports == "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    assert code == (
        "HIDDEN = 8  # units\n\ntorch.manual_seed(0)\n\n\n"
        + HELPER
        + "\n\n\n"
        + NET
        + "\n\n\nGAIN = 2.0\n\nmodel = Net(4)\n\nwith torch.no_grad():\n    model.head.weight.mul_(2)\n"
    ).replace("\n\n\nGAIN", "\n\n\n" + DATA.partition("\n")[2] + "\n\nGAIN")
    assert arguments == {
        "model": "model",
        "train": "train_set",
        "loss": "F.cross_entropy",
        "lr": "1e-2",
    }
    assert set(names) == {
        "torch",
        "F",
        "nn",
        "HIDDEN",
        "activate",
        "Net",
        "x",
        "y",
        "train_set",
        "GAIN",
        "model",
    }
    assert modules == ["torch"]
    script = tmp_path / "again.py"
    script.write_text(f"{imports}\n{code}\nprint(model(x).shape)\n")
    again = without.run(str(script), timeout=280)
    assert again.stdout == "torch.Size([32, 2])\n", again.stderr
    assert "ZeroDivisionError" in printed


def test_the_same_values_in_a_fresh_process(without: Warm, tmp_path: Path) -> None:
    told, printed = run_notebook(
        IMPORTS,
        CONSTANT,
        HELPER,
        NET,
        "x = torch.randn(32, 4)\ny = (x.sum(1) > 0).long()",
        "GAIN = 2.0",
        HELPER,
        NET,
        "model = Net(4)\nmodel.apply(lambda m: m)\nx = x * 2",
        "x = x * 2",
        "x = x * 2",
        "bench = wb.Workbench(model, train=(x, y), loss=F.cross_entropy)",
        STATE
        + "\nbenches = [bench]\nprint('SUM', h(model), float(x.sum()), float(model(x).sum()))",
    )
    imports, code, *_ = told[0]
    assert code.count("class Net") == code.count("def activate") == 1
    assert code.count("x = x * 2") == 3
    script = tmp_path / "again.py"
    script.write_text(
        f"{imports}\n{code}\n{STATE}\nprint('SUM', h(model), float(x.sum()), float(model(x).sum()))\n"
    )
    again = without.run(str(script), timeout=280)
    assert again.stdout.strip() == next(
        line for line in printed.splitlines() if line.startswith("SUM")
    )


def test_places_of_the_call_and_refusals() -> None:
    told, _ = run_notebook(
        "import workbench as wb\nbenches = []",
        "def make(n):\n    model = [n, BASE]\n    return wb.Workbench(model)",
        "BASE = 1",
        "if True:\n    BASE = 2\n    benches.append(make(7)); BASE = 3",
        "%%time\na = [1]\nbenches.append(wb.Workbench(a))",
        "b = [2]\n%time benches.append(wb.Workbench(b))",
        "%%capture\nc = [3]\nbenches.append(wb.Workbench(c))",
        "benches.append(wb.Workbench([4])); benches.append(wb.Workbench([5]))",
        "files = !ls\nbenches.append(wb.Workbench(files))",
        "%store -z\nget_ipython().user_ns['magic'] = 1",
        "benches.append(wb.Workbench([magic]))",
        "d = [1]\nraise KeyError\nd = [2]",
        "def broken(:",
        "benches.append(wb.Workbench(d))",
        "import asyncio\nwaited = await asyncio.sleep(0, [1])\nbenches.append(wb.Workbench(waited))",
        "for n in (1, 2):\n    benches.append(wb.Workbench([n]))",
        "def before(q=1):\n    return q\nlate = [before()]\nbenches.append(wb.Workbench(late))\ndef before(q=2):\n    return q",
        "[6]\nbenches.append(wb.Workbench(_))",
    )
    (
        function,
        timed,
        time_line,
        captured,
        four,
        five,
        shell,
        magic,
        raised,
        waited,
        one,
        two,
        late,
        shown,
    ) = told
    assert function[1] == "BASE = 2\n\nn = 7\n\nmodel = [n, BASE]\n"
    assert timed[1] == "a = [1]\n"
    assert time_line[1] == "b = [2]\n"
    assert captured[1] == "c = [3]\n"
    assert (four[2], five[2]) == ({"model": "[4]"}, {"model": "[5]"})
    assert (
        "`get_ipython` is used by `files = get_ipython().getoutput('ls')` (In [11], line 1)"
        in shell
    )
    assert "`magic` is used by the Workbench call" in magic
    assert "magic such as %run" in magic
    assert raised[1] == "d = [1]\n"
    assert "uses `await`" in waited
    assert (one[1], two[1]) == ("n = 1\n", "n = 2\n")
    assert late[1] == "def before(q=1):\n    return q\n\n\nlate = [before()]\n"
    assert "`_` is used by the Workbench call, but only a notebook has it" in shown


def test_a_script_run_in_a_fresh_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{START}\nimport workbench as wb\nfrom workbench.export.source.source import slice_call\n"
        "def main(n):\n    model = [n]\n    return wb.Workbench(model)\n"
        "if __name__ == '__main__':\n    print(slice_call(main(3).site).code)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE.parents[2],
    )
    assert done.stdout == "n = 3\n\nmodel = [n]\n\n"
