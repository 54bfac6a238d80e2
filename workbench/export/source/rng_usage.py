"""Finds which statements draw random numbers, and whether a script without some of them draws the same.

A notebook may set a seed, draw to look at something, and then draw its data: it draws other data in a script without that
look. A note says so; nothing is added to the script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from workbench.export.source import effects
from workbench.export.source.namespace import At, Namespace
from workbench.export.source.uses import own_level

_FAMILIES = ("torch", "numpy", "random")
_TORCH = re.compile(
    r"torch\.(rand|randn|randint|randperm|rand_like|randn_like|randint_like|normal|bernoulli|multinomial|poisson)"
    r"|torch\.utils\.data(\.dataset)?\.random_split"
    r"|torch\.nn\.init\.(?!zeros_|ones_|constant_|eye_|dirac_)\w+"
    r"|torch\.nn\.(Linear|Bilinear|Conv\w*|Lazy\w*|Embedding\w*|LSTM\w*|GRU\w*|RNN\w*|Transformer\w*|MultiheadAttention)"
    r"|torchvision\.models\.\w+"
)
_NUMPY = re.compile(
    r"numpy\.random\.(?!seed|default_rng|RandomState|Generator|SeedSequence|get_state|set_state|PCG|bit_generator)\w+"
    r"|sklearn\.(model_selection\.train_test_split|utils\.shuffle|datasets\.make_\w+)"
)
_RANDOM = re.compile(r"random\.(?!seed|Random|SystemRandom|getstate|setstate)\w+")
_IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_OWN_STATE = {"generator", "random_state", "rng", "seed"}
"""Keywords that give a call its own source of random numbers."""


def notes(program: Namespace, call: list[ast.expr]) -> tuple[str, ...]:
    """One sentence for each source of random numbers from which the script draws something else than the run did."""
    found: list[str] = []
    for family in _FAMILIES:
        left_out: int | None = None
        seeded = False
        for place in [*range(program.end), None]:
            kept = place is None or place in program.kept
            nodes = call if place is None else [program.statements[place].node]
            at = program.end if place is None else place
            if kept and place is not None and family in _seeds(nodes[0], program, at):
                seeded, left_out = True, None
                continue
            if not seeded or not any(family in draws(node, program, at) for node in nodes):
                continue
            if not kept and left_out is None and place not in program.repeats:
                left_out = place
            elif kept and left_out is not None:
                first = program.statements[left_out]
                user = "the Workbench call" if place is None else _named(program, place)
                found.append(
                    f"`{first.gist}` ({first.place}) drew random numbers after the seed was set and is not needed, so "
                    f"it is not in the script: what {user} draws differs from the run. Set the seed again before it."
                )
                break
    return tuple(dict.fromkeys(found))


def draws(node: ast.AST, program: Namespace, place: int) -> frozenset[str]:
    """The global sources of random numbers that `node` evidently draws from when it runs."""
    return frozenset(_draws(node, program, place, set()))


def _draws(node: ast.AST, program: Namespace, place: int, seen: set[tuple[str, int]]) -> Iterator[str]:
    context = At(program, place)
    for part in own_level(node):
        if isinstance(part, ast.For) and isinstance(part.iter, ast.Name) and context.kind(part.iter.id) == "loader":
            yield "torch"
        if not isinstance(part, ast.Call):
            continue
        path = effects.path_of(part.func, context) or ""
        name = effects.terminal(part.func)
        first = part.args[0] if part.args else None
        if name == "iter" and isinstance(first, ast.Name) and context.kind(first.id) == "loader":
            yield "torch"
        if any(keyword.arg in _OWN_STATE for keyword in part.keywords):
            continue
        if _TORCH.fullmatch(path) or name in _IN_PLACE:
            yield "torch"
        elif _NUMPY.fullmatch(path):
            yield "numpy"
        elif _RANDOM.fullmatch(path):
            yield "random"
        elif isinstance(part.func, ast.Name):
            yield from _drawn_by(part.func.id, program, place, seen)


def _drawn_by(name: str, program: Namespace, place: int, seen: set[tuple[str, int]]) -> Iterator[str]:
    """What a call of the function or class `name` draws from."""
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
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__post_init__", "__new__"):
                    for statement in method.body:
                        yield from _draws(statement, program, program.end, seen)


def _seeds(node: ast.AST, program: Namespace, place: int) -> frozenset[str]:
    context = At(program, place)
    if not effects.sets_state(node, context):
        return frozenset()
    paths = [effects.path_of(part.func, context) or "" for part in own_level(node) if isinstance(part, ast.Call)]
    called = [path for path in paths if "seed" in path] or ["seed" for part in own_level(node) if _calls_seed(part)]
    tops = {path.partition(".")[0] for path in called}
    return frozenset(_FAMILIES) if tops - set(_FAMILIES) else frozenset(tops & set(_FAMILIES))


def _calls_seed(node: ast.AST) -> bool:
    """Whether `node` calls a function; as its statement sets state, one of the user's that seeds."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _named(program: Namespace, place: int) -> str:
    statement = program.statements[place]
    return f"`{statement.gist}` ({statement.place})"
