"""Finds reasons why a script may differ from its run: random numbers, TorchScript.

A notebook may draw its data before it sets a seed. It may set a seed, draw random numbers for a plot, and then draw its data:
a script without the plot draws other data.
Each reason becomes a note; nothing is added to the script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from workbench.export.source import calls, process_state
from workbench.export.source.namespace import At, Namespace
from workbench.export.source.uses import own_level

_FAMILIES = ("torch", "numpy", "random")
_TORCH = re.compile(
    r"torch\.(rand|randn|randint|randperm|rand_like|randn_like|randint_like|normal|bernoulli|multinomial|poisson)"
    r"|torch\.utils\.data(\.dataset)?\.random_split"
)
_WEIGHTS = re.compile(
    r"torch\.nn\.init\.(?!zeros_|ones_|constant_|eye_|dirac_)\w+"
    r"|torch\.nn\.(Linear|Bilinear|Conv\w*|Lazy\w*|Embedding\w*|LSTM\w*|GRU\w*|RNN\w*|Transformer\w*|MultiheadAttention)"
    r"|torchvision\.models\.\w+"
)
"""Functions that draw only weights, which a script reads from the run."""
_NUMPY = re.compile(
    r"numpy\.random\.(?!seed|default_rng|RandomState|Generator|SeedSequence|get_state|set_state|PCG|bit_generator)\w+"
    r"|sklearn\.(model_selection\.train_test_split|utils\.shuffle|datasets\.make_\w+)"
)
_RANDOM = re.compile(r"random\.(?!seed|Random|SystemRandom|getstate|setstate)\w+")
_IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_OF_FRAMES = {"sample", "shuffle", "train_test_split"}
"""Methods of data frames and of Hugging Face data sets that draw from numpy."""
_PARTS = {"parameters", "named_parameters", "modules", "named_modules", "children"}
"""Methods that return weights; a loop over them is a loop over weights."""
_OF_LAYERS = {"weight", "bias", "data"}
_OWN_STATE = {"generator", "random_state", "rng", "seed"}
"""Keywords that give a call its own source of random numbers."""
_SEEDS = {"torch": "torch.manual_seed(0)", "numpy": "np.random.seed(0), or random_state=0", "random": "random.seed(0)"}
_TORCHSCRIPT = re.compile(r"torch\.jit\.(script|trace|trace_module|script_if_tracing|script_method|freeze|optimize_for_inference)")
_GENERATORS = re.compile(r"numpy\.random\.(default_rng|RandomState)|random\.Random")


def notes(program: Namespace, call: list[ast.expr], saved: bool) -> tuple[str, ...]:
    """A note for each reason why the script may differ from the run. saved: the data of the run are saved next to the script."""
    found = [*_unseeded(program, call), *_moved_draws(program, call)]
    remedy = "" if saved else ' Or export with data="beside": it saves small data of train and val beside the script.'
    return tuple(dict.fromkeys([*(f"{note}{remedy}" for note in found), *_torchscript(program)]))


def _run(program: Namespace, call: list[ast.expr]) -> Iterator[tuple[str, int, list[ast.AST]]]:
    """The statements of the script in their order, the call last: each with its name in a note, the place where its names are looked up, its nodes."""
    for place in sorted(program.kept):
        yield _named(program, place), place, [program.statements[place].node]
    yield "the Workbench call", program.end, [*call]


def _unseeded(program: Namespace, call: list[ast.expr]) -> Iterator[str]:
    """Data drawn before a seed is set, and generators without one."""
    for family in _FAMILIES:
        for name, at, nodes in _run(program, call):
            if any(family in _seeds(node, program, at) for node in nodes):
                break
            if any(draw == (family, False) for node in nodes for draw in _draws(node, program, at, set())):
                yield (
                    f"{name} draws random numbers before a seed is set: the script may get other data than the run, and other data "
                    f"each time it runs. Set a seed before it ({_SEEDS[family]}), run it, fit again and export that run."
                )
                break
    for name, at, nodes in _run(program, call):
        for part in (part for node in nodes for part in own_level(node)):
            if isinstance(part, ast.Call) and all(_is(given, None) for given in [*part.args, *(k.value for k in part.keywords)]):
                path = calls.path_of(part.func, At(program, at)) or ""
                if _GENERATORS.fullmatch(path):
                    made = calls.terminal(part.func)
                    yield f"{name} makes a generator without a seed: the numbers that the script draws from it differ. Give it a seed: {made}(0)."


def _torchscript(program: Namespace) -> Iterator[str]:
    """Code that TorchScript compiles after its first calls: the run's first update was not its first call."""
    for each in program.slicer.programs.values():
        for place in sorted(each.kept):
            context = At(each, place)
            named = [part for part in ast.walk(each.statements[place].node) if isinstance(part, (ast.Name, ast.Attribute))]
            if any(_TORCHSCRIPT.fullmatch(calls.path_of(part, context) or "") for part in named):
                yield (
                    f"{_named(each, place)} uses TorchScript, which rounds in another way in its first calls; the run had made these before its "
                    "first update: losses differ in their last digits. Leave torch.jit out, fit again and export that run."
                )


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _moved_draws(program: Namespace, call: list[ast.expr]) -> Iterator[str]:
    """Statements that draw random numbers after the seed was set and after a draw that is not in the script."""
    for family in _FAMILIES:
        left_out: int | None = None
        seeded = False
        for place in [*range(program.called), None]:
            kept = place is None or place in program.kept
            nodes = call if place is None else [program.statements[place].node]
            at = program.end if place is None else place
            if kept and place is not None and family in _seeds(nodes[0], program, at):
                seeded, left_out = True, None
                continue
            drawn = {weights for node in nodes for name, weights in _draws(node, program, at, set()) if name == family} if seeded else set()
            if not drawn or (kept and False not in drawn):  # the script reads its weights from the run
                continue
            if not kept and left_out is None and place not in program.repeats:
                left_out = place
            elif kept and left_out is not None:
                first = program.statements[left_out]
                user = "the Workbench call" if place is None else _named(program, place)
                yield (
                    f"`{first.gist}` ({first.place}) drew random numbers after the seed was set and is not needed, so "
                    f"it is not in the script: the numbers that {user} draws differ from the run. Set the seed again before it."
                )
                break


def _draws(node: ast.AST, program: Namespace, place: int, seen: set[tuple[str, int]]) -> Iterator[tuple[str, bool]]:
    """Each global generator from which `node` evidently draws when it runs, and whether it draws only weights."""
    context = At(program, place)
    weights = _makes_weights(node, context)
    for part in own_level(node):
        if isinstance(part, ast.For) and isinstance(part.iter, ast.Name) and context.kind(part.iter.id) == "loader":
            yield "torch", False
        if not isinstance(part, ast.Call):
            continue
        path = calls.path_of(part.func, context) or ""
        name = calls.terminal(part.func)
        first = part.args[0] if part.args else None
        if name == "iter" and isinstance(first, ast.Name) and context.kind(first.id) == "loader":
            yield "torch", False
        if any(keyword.arg in _OWN_STATE and not _is(keyword.value, None) for keyword in part.keywords):
            continue
        if any(keyword.arg == "shuffle" and _is(keyword.value, False) for keyword in part.keywords):
            continue
        if _WEIGHTS.fullmatch(path):
            yield "torch", True
        elif _TORCH.fullmatch(path) or name in _IN_PLACE:
            yield "torch", weights
        elif _NUMPY.fullmatch(path) or (not path and _draws_of_frame(part, context)):
            yield "numpy", weights
        elif _RANDOM.fullmatch(path):
            yield "random", weights
        elif isinstance(part.func, ast.Name):
            yield from ((family, weights or own) for family, own in _drawn_by(part.func.id, program, place, seen))


def _makes_weights(node: ast.AST, context: At) -> bool:
    """Whether a statement only makes or changes models."""
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return len(names) == len(node.targets) and all(context.kind(name) == "network" for name in names)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        of = called.value if isinstance(called, ast.Attribute) else called
        return (isinstance(of, ast.Name) and context.kind(of.id) == "network") or (isinstance(of, ast.Attribute) and of.attr in _OF_LAYERS)
    return isinstance(node, ast.For) and any(isinstance(part, ast.Call) and calls.terminal(part.func) in _PARTS for part in ast.walk(node.iter))


def _draws_of_frame(call: ast.Call, context: At) -> bool:
    """Whether a method draws rows of a data frame or of a data set of Hugging Face."""
    name, of = calls.terminal(call.func), call.func.value if isinstance(call.func, ast.Attribute) else None
    held = context.kind(of.id) if isinstance(of, ast.Name) else None
    return name in _OF_FRAMES and held in ("frame", "datasets")


def _drawn_by(name: str, program: Namespace, place: int, seen: set[tuple[str, int]]) -> Iterator[tuple[str, bool]]:
    """The generators from which a call of the function or class `name` draws."""
    for at in program.reaching(name, place):
        node = program.statements[at].node
        if (program.name, at) in seen:
            continue
        seen.add((program.name, at))
        if isinstance(node, ast.ImportFrom):
            found = program.slicer.imported(program, node, name)
            if found is not None:
                yield from _drawn_by(found[1], found[0], found[0].end, seen)
        elif isinstance(node, ast.FunctionDef):
            for statement in node.body:
                yield from _draws(statement, program, program.end, seen)
        elif isinstance(node, ast.ClassDef):
            methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
            model = _is_network(node, program)
            for method in methods:
                if method.name in ("__init__", "__post_init__", "__new__"):
                    for statement in method.body:
                        for family, weights in _draws(statement, program, program.end, seen):
                            yield family, weights or model


def _is_network(node: ast.ClassDef, program: Namespace) -> bool:
    """Whether a class is a module of torch, as far as its bases and methods tell."""
    context = At(program, program.end)
    bases = [calls.path_of(base, context) or "" for base in node.bases]
    own = [program.statements[at].node for base in node.bases if isinstance(base, ast.Name) for at in program.reaching(base.id, program.end)]
    return (
        any(base.startswith("torch.nn.") or base.endswith("Module") for base in bases)
        or any(isinstance(part, ast.FunctionDef) and part.name in ("forward", "training_step") for part in node.body)
        or any(isinstance(base, ast.ClassDef) and base is not node and _is_network(base, program) for base in own)
    )


def _seeds(node: ast.AST, program: Namespace, place: int) -> frozenset[str]:
    context = At(program, place)
    if not process_state.sets_state(node, context):
        return frozenset()
    paths = [calls.path_of(part.func, context) or "" for part in own_level(node) if isinstance(part, ast.Call)]
    # The statement sets state of the process, so a function of the user that it calls may set the seed.
    own = ["seed" for part in own_level(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]
    called = [path for path in paths if "seed" in path] or own
    tops = {path.partition(".")[0] for path in called}
    return frozenset(_FAMILIES) if tops - set(_FAMILIES) else frozenset(tops & set(_FAMILIES))


def _named(program: Namespace, place: int) -> str:
    statement = program.statements[place]
    return f"`{statement.gist}` ({statement.place})"
