"""What of the user's code moves into `build()`, and what stays at the top level."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.export.export_running import Runner, lint, make_bench, repeats
from workbench.export.assembly.build import Built, built
from workbench.export.assembly.text import without_unread
from workbench.export.source.rewrite.source_text import Block

OURS = "def validate(network, loader):\n    return metrics\n\n\ndef main(config):\n    return model.train(data, limit)\n"


def split(*code: str, in_workers: tuple[str, ...] = ()) -> Built:
    blocks = [
        Block(text, text.startswith(("def ", "class ")), "", number, number)
        for number, text in enumerate(code)
    ]
    return built(blocks, OURS, {"torch": "torch", "nn": "torch.nn"}, in_workers=in_workers)


def texts(blocks: list[Block]) -> list[str]:
    return [block.text for block in blocks]


def test_definitions_and_constants_stay() -> None:
    moves = [
        "torch.manual_seed(0)",
        "model = Net(SIZE)",
        "own = OwnLoss()",
        "data = make(SIZE, own)",
    ]
    stays = [
        "SIZE = 8",
        "class Net:\n    pass",
        "loss = nn.MSELoss()",
        "metrics = {'mean': lambda x: x.mean()}",
    ]
    found = split(moves[0], *stays[:2], *moves[1:], *stays[2:])
    assert texts(found.moves) == moves
    assert texts(found.stays) == stays
    assert found.returned == ["model", "data"]
    assert not found.at_once


def test_a_name_that_is_bound_anew_after_its_use_keeps_its_place() -> None:
    code = (
        "def make():\n    return SIZE",
        "SIZE = 7",
        "model = make()",
        "SIZE = 8",
        "data = make()",
    )
    found = split(*code)
    assert (texts(found.moves), found.shared) == ([*code[1:]], ["SIZE"])
    assert texts(split(*code, in_workers=("data",)).moves) == ["data = make()"]
    code = ("def f():\n    return 1", "model = f()", "def f():\n    return 2", "data = f()")
    assert texts(split(*code).moves) == ["data = f()"]


def test_a_constant_made_of_what_changed_moves_too() -> None:
    code = (
        "sizes = []",
        "sizes.append(8)",
        "limit = sizes + [1]",
        "model = make(limit)",
        "data = 1",
    )
    assert texts(split(*code).moves) == [*code[1:4]]


CONFIG = "class CFG:\n    scale = 1.0\n    sizes = [1]"
CHANGED = {
    "an attribute of a class": (CONFIG, "CFG.scale = 5.0", "scale = CFG.scale"),
    "by another name": (CONFIG, "cfg = CFG", "CFG.scale = 5.0", "scale = cfg.scale * 2"),
    "by a method": (CONFIG, "CFG.sizes.append(2)", "scale = CFG.sizes[0]"),
    "in a function": (
        CONFIG,
        "def apply(value):\n    CFG.scale = value",
        "apply(5.0)",
        "scale = CFG.scale",
    ),
    "as an argument": (CONFIG, "apply(CFG)", "scale = [CFG.scale]"),
    "an object that was made before": (
        "cfg = load()",
        "def read():\n    return cfg",
        "cfg.scale = 5.0",
        "scale = cfg.scale",
    ),
    "an attribute of a module": ("torch.backends.x = 1", "scale = torch.backends.x"),
    "of a module in a function": (
        "def apply():\n    torch.backends.x = 1",
        "apply()",
        "scale = torch.backends.x",
    ),
}


@pytest.mark.parametrize("how", CHANGED)
def test_what_reads_what_was_changed_stays_behind_it(how: str) -> None:
    code = (*CHANGED[how], "model = make(scale)")
    found = split(*code)
    assert texts(found.moves)[-3:] == list(code[-3:])


@pytest.mark.parametrize(
    "late", ["class Net:\n    scale = CFG.scale", "def net(scale=CFG.scale):\n    pass"]
)
def test_nothing_moves_behind_a_definition_that_takes_a_changed_value(late: str) -> None:
    found = split(CONFIG, "CFG.scale = 5.0", late, "model = make()")
    assert texts(found.moves) == ["model = make()"]


def test_constants_that_hold_what_others_use_stay() -> None:
    stays = [
        "def accuracy(x):\n    return x",
        "metrics = {'accuracy': accuracy}",
        "kind = torch.float32",
        "class Net(torch.nn.Module):\n    pass",
    ]
    found = split(
        stays[0],
        "torch.backends.x = 1",
        "torch.manual_seed(0)",
        "x = accuracy(torch.rand(3, dtype=torch.float32))",
        *stays[1:],
        "model = make(x)",
    )
    assert texts(found.stays) == stays


def test_strings_over_several_lines_do_not_move_in() -> None:
    found = split('model = make("""a\n  b""")').function("build", "What it used.")
    assert (
        found
        == 'def build():\n    """What it used."""\n    model = make("""a\n  b""")\n    return model'
    )


STAYS = {
    "a function with types reads it": (
        "device = pick()",
        "def moved(x: Any):\n    return x.to(device)",
        "model = make()",
    ),
    "a function reads it when it decorates": (
        "scale = pick()",
        "def deco(f):\n    return lambda: f() * scale\n\n@deco\ndef g():\n    pass",
        "model = make(g)",
    ),
    "a class reads it when it is made": (
        "base = pick()",
        "class Net(base):\n    pass",
        "model = Net()",
    ),
    "an import follows": ("os.environ['A'] = 'b'", "import c", "model = c.make()"),
    "a definition draws": (
        "torch.manual_seed(0)",
        "class Net:\n    noise = torch.randn(3)",
        "model = Net()",
    ),
}


def test_what_functions_read_is_made_globally_where_no_worker_needs_it() -> None:
    code = (
        "weight = pick()",
        "metrics = [weight]",
        "def loss(x):\n    return x * weight",
        "data = make()",
        "model = Net()",
    )
    found = split(*code)
    assert (texts(found.stays), found.shared, found.returned) == (
        [code[2]],
        ["metrics", "weight"],
        ["model", "data"],
    )
    assert "    global metrics, weight  #" in found.function("build", "It.")
    assert (
        split(*code[:2], "def make():\n    return weight", *code[3:], in_workers=("data",)).shared
        == []
    )


WEIGHTS = {
    "an argument of the loss": (
        "weight = y.bincount().float()\n",
        "loss=functools.partial(F.cross_entropy, weight=weight)",
    ),
    "what the loss reads": (
        "weight = y.bincount().float()\ndef loss(output, target):\n    return F.cross_entropy(output, target, weight=weight)\n",
        "loss=loss",
    ),
    "a loss with parameters": (
        "loss = nn.CrossEntropyLoss(weight=y.bincount().float())\n",
        "loss=loss, metrics={'again': loss}",
    ),
}


@pytest.mark.parametrize("how", WEIGHTS)
def test_weights_of_classes_do_not_keep_the_data_at_the_top(
    how: str, runner: Runner, tmp_path: Path
) -> None:
    before, loss = WEIGHTS[how]
    bench = make_bench(
        tmp_path,
        f"model, train=(x, y), val=(x, y), {loss}, max_epochs=2",
        f"import functools\n{before}",
    )
    bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    assert not {"model", "x", "y", "weight"} & runpy.run_path(str(script), run_name="train").keys()
    repeats(bench, runner, tmp_path)


@pytest.mark.parametrize("why", STAYS)
def test_what_something_else_needs_stays_with_all_before_it(why: str) -> None:
    found = split(*STAYS[why])
    assert STAYS[why][0] in texts(found.stays)
    assert found.at_once
    moved = texts(found.moves)
    assert moved in ([], [STAYS[why][2] if len(STAYS[why]) > 2 else STAYS[why][1]])


@pytest.mark.parametrize(
    "code",
    [
        ("model = eval('make()')",),
        ("model = make()", "torch = model"),
        ("unused = make()", "model = make()"),
        ("model, unused = make(), make()",),
    ],
)
def test_nothing_moves_where_it_might_matter(code: tuple[str, ...]) -> None:
    found = split(*code)
    assert not found.moves or texts(found.moves) == ["model = make()"]


def test_importing_a_script_makes_nothing(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=1")
    bench.fit().result()
    names = runpy.run_path(str(bench.export(tmp_path / "train.py")), run_name="train")
    assert "Net" in names
    assert not {"model", "x", "y"} & names.keys()
    bench.close()


def test_settings_that_are_not_read_are_left_out() -> None:
    config = "@dataclasses.dataclass\nclass Config:\n    lr: float = 0.1\n    max_steps: int = 3  # updates\n    seed: int = 0"
    assert (
        without_unread(config, "lr = config.lr\nconfig.seeds = seed")
        == "@dataclasses.dataclass\nclass Config:\n    lr: float = 0.1"
    )


def test_data_stay_where_a_function_with_types_needs_them(runner: Runner, tmp_path: Path) -> None:
    before = "scale = x.std()\n\n\ndef loss(output: torch.Tensor, target: torch.Tensor):\n    return F.cross_entropy(output * scale, target)\n"
    bench = make_bench(tmp_path, "model, train=(x, y), loss=loss, max_epochs=2", before)
    bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    names = runpy.run_path(str(script), run_name="train").keys()
    assert "scale" in names
    repeats(bench, runner, tmp_path)
