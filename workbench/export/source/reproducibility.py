"""Finds why a script may get other data than its run: random numbers without a seed or in another order, and files.

A notebook may draw its data before it sets a seed. It may set a seed, draw to look at something, and then draw its data:
a script without that look draws other data. It may write a file that it reads later, in a cell that the script does not have.
Each gets a note; nothing is added to the script.
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
)
_WEIGHTS = re.compile(
    r"torch\.nn\.init\.(?!zeros_|ones_|constant_|eye_|dirac_)\w+"
    r"|torch\.nn\.(Linear|Bilinear|Conv\w*|Lazy\w*|Embedding\w*|LSTM\w*|GRU\w*|RNN\w*|Transformer\w*|MultiheadAttention)"
    r"|torchvision\.models\.\w+"
)
"""What draws weights alone, which a script reads from the run."""
_NUMPY = re.compile(
    r"numpy\.random\.(?!seed|default_rng|RandomState|Generator|SeedSequence|get_state|set_state|PCG|bit_generator)\w+"
    r"|sklearn\.(model_selection\.train_test_split|utils\.shuffle|datasets\.make_\w+)"
)
_RANDOM = re.compile(r"random\.(?!seed|Random|SystemRandom|getstate|setstate)\w+")
_IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_OWN_STATE = {"generator", "random_state", "rng", "seed"}
"""Keywords that give a call its own source of random numbers."""
_SEEDS = {"torch": "torch.manual_seed(0)", "numpy": "np.random.seed(0)", "random": "random.seed(0)"}
_GENERATORS = re.compile(r"numpy\.random\.(default_rng|RandomState)|random\.Random")
_WRITES = set(
    "save savez savez_compressed savetxt tofile dump save_file save_model save_pretrained to_csv to_parquet to_pickle to_json"
    " to_feather to_hdf write_text write_bytes imwrite write_image urlretrieve".split()
)
_FILE = re.compile(r"[^\n*?<>|]*[./\\][^\n*?<>|]+")


def notes(program: Namespace, call: list[ast.expr]) -> tuple[str, ...]:
    """One sentence for each reason why the script may get other data than the run."""
    return tuple(dict.fromkeys([*_unseeded(program, call), *_moved_draws(program, call), *_missing_files(program, call)]))


def _run(program: Namespace, call: list[ast.expr]) -> Iterator[tuple[int | None, int, list[ast.AST]]]:
    """The statements of the script in their order: place, the place at which names are looked up, nodes; the call is the last (None)."""
    for place in sorted(program.kept):
        yield place, place, [program.statements[place].node]
    yield None, program.end, [*call]


def _unseeded(program: Namespace, call: list[ast.expr]) -> Iterator[str]:
    """Data drawn before a seed is set, and generators without one."""
    for family in _FAMILIES:
        for place, at, nodes in _run(program, call):
            if place is not None and family in _seeds(nodes[0], program, at):
                break
            if any(draw == (family, False) for node in nodes for draw in _draws(node, program, at, set())):
                user = "the Workbench call" if place is None else _named(program, place)
                yield (
                    f"{user} draws random numbers before a seed is set: the script gets other data than the run, and each time. "
                    f"Set a seed before it: {_SEEDS[family]}."
                )
                break
    for place, at, nodes in _run(program, call):
        for part in (part for node in nodes for part in own_level(node)):
            if isinstance(part, ast.Call) and not part.args and not part.keywords:
                path = effects.path_of(part.func, At(program, at)) or ""
                if _GENERATORS.fullmatch(path):
                    user = "the Workbench call" if place is None else _named(program, place)
                    yield f"{user} makes a generator without a seed: what the script draws from it differs from the run. Give it a seed: {effects.terminal(part.func)}(0)."


def _missing_files(program: Namespace, call: list[ast.expr]) -> Iterator[str]:
    """Files that the script reads and that a statement wrote which it does not have."""
    read = {text for _, at, nodes in _run(program, call) for node in nodes for text in _files(node, program, at)}
    for place, statement in enumerate(program.statements):
        if place in program.kept or place in program.repeats:
            continue
        for part in own_level(statement.node):
            if isinstance(part, ast.Call) and _writes(part):
                for name in sorted(read.intersection(_files(part, program, place))):
                    yield f"{_named(program, place)} wrote {name}, which the script reads and does not write: keep this file."


def _writes(part: ast.Call) -> bool:
    name = effects.terminal(part.func)
    if name == "open":
        mode = next((k.value for k in part.keywords if k.arg == "mode"), part.args[1] if len(part.args) > 1 else None)
        return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set(mode.value) & set("wxa+"))
    return name in _WRITES


def _files(node: ast.AST, program: Namespace, place: int) -> Iterator[str]:
    """The names of files in `node`, also those that it has from a constant."""
    for part in own_level(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and _FILE.fullmatch(part.value):
            yield part.value
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            for at in program.reaching(part.id, place):
                held = program.statements[at].node
                if isinstance(held, (ast.Assign, ast.AnnAssign)) and held.value is not None:
                    for inner in own_level(held.value):
                        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and _FILE.fullmatch(inner.value):
                            yield inner.value


def _moved_draws(program: Namespace, call: list[ast.expr]) -> Iterator[str]:
    """What is drawn after the seed was set, and after a draw that is not in the script."""
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
                    f"it is not in the script: what {user} draws differs from the run. Set the seed again before it."
                )
                break


def _draws(node: ast.AST, program: Namespace, place: int, seen: set[tuple[str, int]]) -> Iterator[tuple[str, bool]]:
    """Each global source of random numbers that `node` evidently draws from when it runs, and whether for weights alone."""
    context = At(program, place)
    for part in own_level(node):
        if isinstance(part, ast.For) and isinstance(part.iter, ast.Name) and context.kind(part.iter.id) == "loader":
            yield "torch", False
        if not isinstance(part, ast.Call):
            continue
        path = effects.path_of(part.func, context) or ""
        name = effects.terminal(part.func)
        first = part.args[0] if part.args else None
        if name == "iter" and isinstance(first, ast.Name) and context.kind(first.id) == "loader":
            yield "torch", False
        if any(keyword.arg in _OWN_STATE for keyword in part.keywords):
            continue
        if _TORCH.fullmatch(path):
            yield "torch", False
        elif _WEIGHTS.fullmatch(path) or name in _IN_PLACE:
            yield "torch", True
        elif _NUMPY.fullmatch(path):
            yield "numpy", False
        elif _RANDOM.fullmatch(path):
            yield "random", False
        elif isinstance(part.func, ast.Name):
            yield from _drawn_by(part.func.id, program, place, seen)


def _drawn_by(name: str, program: Namespace, place: int, seen: set[tuple[str, int]]) -> Iterator[tuple[str, bool]]:
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
            methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
            model = any(method.name in ("forward", "training_step") for method in methods)
            for method in methods:
                if method.name in ("__init__", "__post_init__", "__new__"):
                    for statement in method.body:
                        for family, weights in _draws(statement, program, program.end, seen):
                            yield family, weights or model


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
