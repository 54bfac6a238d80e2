"""Writes the whole text of a script: head, imports, the user's code, settings, functions, main."""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from importlib.metadata import packages_distributions
from textwrap import dedent
from typing import Any

from workbench.export.assembly import build, names
from workbench.export.assembly.program_source import (
    ON_TORCH,
    known_names,
    program_imports,
    program_source,
)
from workbench.export.assembly.run_constants import constants_of, epoch_parts, sampler_generators
from workbench.export.errors import NotStandAlone
from workbench.export.file_format import ExportOptions
from workbench.export.fold import fold
from workbench.export.folding.layout import laid_out
from workbench.export.inputs.collect import GIVEN, quoted
from workbench.export.script_spec import ScriptSpec
from workbench.export.source.origins import Import
from workbench.export.source.rewrite.source_text import Block, join, parsed_imports, set_imports
from workbench.settings.optimizers import NAMES, parts_of
from workbench.task.data.to_dataset import UNNAMED

THREADS = "torch.set_num_threads(config.threads)"
"""The line of `main` that sets the number of threads, where the user's code does not."""
_OPTION_OF_THREADS = re.compile("^    threads: int = .*\n", re.MULTILINE)
CONVERTED = (
    "column if isinstance(column, torch.Tensor) else torch.as_tensor(np.array(column, dtype=kind))"
)
"""The expression for a tensor from a data frame, or from an array that torch does not accept
directly.
"""
_LIBRARIES = (
    Import("torch"),
    Import("numpy", None, "np"),
    Import("torch.utils.data", "TensorDataset"),
    Import("safetensors.torch", "load_file"),
    Import("functools"),
    Import("schedulefree"),
)
"""What expressions for the data may need besides the program's imports."""


def text_of(r: ScriptSpec, options: ExportOptions) -> str:
    """The text of the script."""
    constants = constants_of(r, title_of(r), options)
    return with_users_code(
        r, program_of(r, constants, ON_TORCH), _head(r), program_imports(ON_TORCH)
    )


def with_users_code(r: ScriptSpec, ours: str, head: str, further: Iterable[Import] = ()) -> str:
    """The text of a file with the user's code and this program, which uses the names of `GIVEN`.

    head: its docstring. further: imports that the program may need.
    """
    tree = names.parsed(ours)
    used = names.read(tree) | {"torch"}
    saved: dict[str, Any] = (
        {} if r.data_file is None else {read.dataset: (read.saved, []) for read in r.loaders}
    )
    other = "val_data" if r.val_sets else "val_sets"
    given: dict[str, tuple[str, list[str]]] = {}
    if saved:
        file = f"Path(__file__).with_name({quoted(r.data_file)})"
        given["tensors"] = f"load_file({file})", []
    given |= {
        name: saved[name] if name in saved else _expression(r, name)
        for name in GIVEN
        if name in used and name != other
    }
    used |= {word for around, _ in given.values() for word in re.findall(r"\w+", around)}
    every = {item.binds: item for item in [*_LIBRARIES, *further]}
    imports = [item for name, item in every.items() if name in used - names.defined(tree)]
    rebound = _rebound(r, used)
    if rebound:
        imports.append(Import("builtins"))
    renamed = _renamed(r, names.defined(tree) | set(given), imports)
    renamed |= {name: f"{renamed.get('builtins', 'builtins')}.{name}" for name in rebound}
    ours = names.replaced(ours, renamed)
    inside: dict[str, str] = {}
    bindings: list[str] = []
    functions = [(names.bound_in(node), names.read(node)) for node in names.parsed(ours).body]
    for plain, (around, parts) in sorted(given.items(), key=lambda item: _place(r, item[0])):
        name = renamed.get(plain, plain)
        between = names.replaced(around, renamed).split("...")
        expression = "".join(itertools.chain(*itertools.zip_longest(between, parts, fillvalue="")))
        if names.fits(name, expression, functions):
            inside[name] = expression
        elif expression != name:  # else the user's code binds that name itself
            bindings.append(names.binding(name, expression))
    return _joined(r, head, imports, renamed, bindings, names.replaced(ours, inside))


def _place(r: ScriptSpec, name: str) -> int:
    """The position of an argument in the call; arguments were evaluated in that order."""
    if name not in GIVEN:
        return -1
    arguments = list(r.sliced.arguments)
    return arguments.index(GIVEN[name]) if GIVEN[name] in arguments else len(arguments)


def program_of(r: ScriptSpec, constants: Mapping[str, object], modules: tuple[str, ...]) -> str:
    """The program of a run, which uses the names of `GIVEN` for what is the user's."""
    program = fold(program_source(modules), constants, known_names(modules))
    program = laid_out(names.replaced(program, _places(r)))
    head, _, rest = program.partition("\n\n\ndef parse(")
    head = _counted(head, constants)
    read = program if r.sets_threads else f"{program}\n{THREADS}"
    return without_unread(head, read) + "\n\n\ndef parse(" + rest


def without_unread(config: str, program: str) -> str:
    """The class of the settings without those that the program does not read (`config.lr`)."""
    read = set(re.findall(r"\bconfig\.(\w+)", program))
    fields = [(line, re.match(r"    (\w+): ", line)) for line in config.split("\n")]
    return "\n".join(line for line, field in fields if field is None or field[1] in read)


def _counted(config: str, constants: Mapping[str, object]) -> str:
    """The class of the settings, with how the run counted what may be a number or a fraction."""
    is_fraction = {
        "warmup": constants["WARMUP_IS_FRACTION"],
        "val_check_interval": constants["CHECKS_WITHIN_EPOCHS"] == "fraction",
        "limit_train_batches": constants["LIMITS"] == "fraction",
        "limit_val_batches": constants["LIMITS_VAL"] == "fraction",
    }
    for name, is_one in is_fraction.items():
        field = re.compile(rf"(    {name}: )float( = .*)  # (\w+), or (a fraction of .*)")
        config = field.sub(r"\1float\2  # \4" if is_one else r"\1int\2  # \3", config)
    return config


def _places(r: ScriptSpec) -> dict[str, str]:
    """The expressions for parts of the user's objects, by their names in the program."""
    places = (
        {} if r.hooks is None else {f"{name}_home": home for name, home in r.hooks.homes.items()}
    )
    listed = {"epoch_parts": epoch_parts(r), "sampler_generators": sampler_generators(r)}
    for name, items in listed.items():
        places[name] = f"[{', '.join(items)}]"
    pairs = [("train", r.train)]
    if r.val is not None and not r.val_sets:
        pairs.append(("val", r.val))
    for name, read in pairs:
        expressions = {
            "data": read.dataset, "sampler": read.sampler, "batch_sampler": read.batch_sampler,
            "generator": read.generator, "worker_init": read.worker_init,
        }  # fmt: skip
        places |= {f"{name}_{what}": text for what, text in expressions.items() if text}
    if r.lightning.datamodule != "None":
        places["datamodule"] = r.lightning.datamodule
    collates = {"collate": r.train.collate, "val_collate": None if r.val is None else r.val.collate}
    return {**places, **{name: text for name, text in collates.items() if text and text != name}}


def _joined(
    r: ScriptSpec,
    head: str,
    imports: list[Import],
    renamed: Mapping[str, str],
    bindings: list[str],
    ours: str,
) -> str:
    given = [
        Block(text, definition=text.startswith("def "), origin="given", start=n, end=n)
        for n, text in enumerate(bindings)
    ]
    taken = _taken(r) | {item.binds for item in imports} | names.defined(names.parsed(ours))
    make = free("build", taken)
    known = {item.binds: item.identity for item in [*imports, *parsed_imports(r.sliced.imports)[0]]}
    own_main = renamed.get("main", "main")
    made = build.built([*r.sliced.blocks, *given], ours, known, own_main, _in_workers(r))
    first = [] if r.sets_threads else [names.replaced(THREADS, renamed)]
    parts = [head + "\n\n" + _import_lines(r, imports, renamed)]
    if made.at_once and not r.sets_threads:
        # An import of the script makes the data, and is to make the same.
        parts.append(names.replaced(f"torch.set_num_threads({r.threads})", renamed))
        first = []
        ours = _OPTION_OF_THREADS.sub("", ours)
    ours = build.with_lines(ours, own_main, [*first, *made.call(make)])
    what = f"The model{' and the data' * (r.data_file is None)} of the run."
    code = "\n\n\n".join(
        part for part in (join(made.stays).strip("\n"), made.function(make, what)) if part
    )
    if code:
        gap = "\n\n" if re.match(r"(#.*\n)*(def |class |async |@)", code) else "\n"
        parts.append(f"{rule('the code of the run')}\n{gap}{code}")
    parts.append(f"{rule('the training')}\n\n\n{ours.strip()}")
    text = parts[0]
    for before, part in itertools.pairwise(parts):
        text += ("\n\n\n" if before.splitlines()[-1].startswith(" ") else "\n\n") + part
    return text + "\n"


def _in_workers(r: ScriptSpec) -> set[str]:
    """The names in the expressions for objects that loader workers use."""
    names = (
        (
            "train",
            "val",
            "collate_fn",
            "val_collate_fn",
            *(["model"] if r.hooks is not None else []),
        )
        if r.settings.num_workers
        else ()
    )
    return {word for name in names for word in re.findall(r"\w+", r.given(name) or "")}


def free(name: str, taken: set[str]) -> str:
    """The name, or a similar one that is not taken."""
    while name in taken:
        name += "_"
    return name


def rule(title: str) -> str:
    """A comment line that begins a part of the script."""
    return f"# ---- {title} ".ljust(100, "-")


def title_of(r: ScriptSpec) -> str:
    """The first line of the script."""
    title = f"Train {plain(r.model)} as the run {plain(r.run)} did."
    if r.ended_at is None:
        return title
    how = (
        "stopped by hand"
        if r.by_hand
        else "stopped by the clock"
        if r.settings.max_time is not None
        else "ended by a metric"
    )
    return f"{title} The run was {how}; max_steps says where."


def _head(r: ScriptSpec) -> str:
    script = shlex.quote(r.script)
    start = (
        "The weights that the run began with were not recorded: it begins with those that its code"
        " makes."
    )
    if r.weights is not None:
        start = (
            f"The weights that the run began with are read from {plain(r.weights)}, if that is"
            " there."
        )
    own = ["torch", "accelerate"]
    modules = {*r.sliced.modules, *_package_of(r.settings.optimizer)}
    needed = [*own, *packages(modules - set(own))]
    needs = textwrap.fill(
        f"Needs: {', '.join(needed)}.{had(r)}",
        98,
        subsequent_indent="    ",
        break_long_words=False,
    )
    start = "\n".join([start, *saved_data(r)])
    paragraphs = [*r.sliced.notes, *r.sliced.differs, *_notes(r), *evidence(r)]
    notes = "".join(f"\n\n{textwrap.fill(plain(text), 98)}" for text in paragraphs)
    if notes:
        notes += "\n"
    return dedent('''\
        """{}

        {}

        {}
        {}{}
        Written by Tuning Workbench {}.
        """''').format(title_of(r), _start(r, plain(script)), start, needs, notes, r.version)


def _package_of(choice: str | Mapping[str, Any] | None) -> list[str]:
    """The package of an optimizer with a name, where a script imports one for it."""
    module = "torch" if choice is None else NAMES[parts_of(choice)[0]][0]
    return [module] if module == "schedulefree" else []


def packages(modules: Iterable[str]) -> list[str]:
    """The names by which modules are installed: "scikit-learn" for "sklearn"."""
    wanted = set(modules)
    if not wanted:
        return []
    if not wanted <= _distributions().keys():
        _distributions.cache_clear()  # one may have been installed since
    installed = _distributions()
    return sorted(installed.get(module, [module])[0] for module in wanted)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """The distributions of each module, kept: it reads the files' lists of all that is
    installed.
    """
    return packages_distributions()


def had(r: ScriptSpec) -> str:
    """A sentence with the versions of the run's libraries."""
    return f" The run had {plain(r.libraries)}." if r.libraries else ""


def _start(r: ScriptSpec, script: str) -> str:
    """The lines of the docstring that say how to start the script so that it repeats the run."""
    if r.single_process_reason:
        return f"    python {script}    (in one process)"
    if not r.distributed:
        return (
            f"    python {script}\n    accelerate launch {script}    (or torchrun; on every device"
            " there is)"
        )
    devices = r.settings.devices
    visible = (
        f"CUDA_VISIBLE_DEVICES={','.join(map(str, devices))} " if isinstance(devices, tuple) else ""
    )
    nodes, where = "", ""
    if r.settings.num_nodes > 1:
        nodes = f"--nnodes {r.settings.num_nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
        where = f", on each of {r.settings.num_nodes} machines"
    again = f"    (as the run was made: {r.ranks} processes{where})"
    return (
        f"    {visible}torchrun {nodes}--nproc-per-node {r.local_ranks} {script}{again}\n"
        f"    python {script}    (in one process, where an update has other batches)"
    )


def saved_data(r: ScriptSpec) -> list[str]:
    """The sentence about the file with the data, if they are saved."""
    return (
        []
        if r.data_file is None
        else [f"The data of the run are read from {plain(r.data_file)}, which must be there."]
    )


def _notes(r: ScriptSpec) -> list[str]:
    """Sentences about what the script does in another way than the run."""
    if not r.settings.preload:
        return []
    return [
        "The run read each sample once (preload): if samples draw random numbers, here they draw"
        " new ones each time."
    ]


def evidence(r: ScriptSpec) -> list[str]:
    """Paragraphs about where the settings come from."""
    return ["Where its settings come from:", *r.evidence] if r.evidence else []


def plain(text: str) -> str:
    """Text that is safe in a docstring: without quotes that end it, escapes, line breaks and
    unprintable characters.
    """
    printed = "".join(character if character.isprintable() else " " for character in text)
    return printed.replace("\\", "/").replace('"""', "'''")


# ---- names and imports ---------------------------------------------------------------------------


def _expression(r: ScriptSpec, name: str) -> tuple[str, list[str]]:
    """The expression for one of `GIVEN`: the script's text with `...` for each piece of the
    user's, and those pieces.
    """
    given = r.given(GIVEN[name])
    if name == "make_optimizer" and given is None:
        return _named_optimizer(r.settings.optimizer or "adamw"), []
    if given is None:
        return "None", []
    if name == "val_sets":
        return _sets(r, given)
    read = {"train_data": r.train, "val_data": r.val}.get(name)
    if read is not None and read.arrays and read.converted:
        return (
            f"TensorDataset(*({CONVERTED} for column, kind in zip(..., {quoted(read.kinds)})))",
            [given],
        )
    if read is not None and read.arrays:
        return _tensors(given, r.kinds)
    return "...", [given]


def _named_optimizer(choice: str | Mapping[str, Any]) -> str:
    """The expression for what makes the optimizer with this name."""
    name, arguments = parts_of(choice)
    module, kind = NAMES[name]
    bound = "".join(f", {argument}={quoted(value)}" for argument, value in arguments.items())
    if name == "muon":  # a class of the script's own, which is defined further down
        return f"lambda parameters, **rates: {kind}(parameters{bound}, **rates)" if bound else kind
    return f"functools.partial({module}.{kind}{bound})" if bound else f"{module}.{kind}"


def _sets(r: ScriptSpec, given: str) -> tuple[str, list[str]]:
    """A dict of the validation sets, from a dict or a list; a LightningModule's are named by
    their numbers, as in Lightning.
    """
    assert r.val is not None
    node = ast.parse(given.strip(), mode="eval").body
    named = any(key != f"{UNNAMED}{number}" for number, key in enumerate(r.val_sets))
    pairs = (
        []
        if not isinstance(node, ast.Dict) or r.hooks is not None
        else [
            (key, ast.get_source_segment(given.strip(), value) or "")
            for key, value in zip(node.keys, node.values, strict=True)
        ]
    )
    if (
        r.val.arrays
        and not r.val.converted
        and pairs
        and all(isinstance(key, ast.Constant) for key, _ in pairs)
    ):
        made = [
            (quoted(str(key.value)), *_tensors(text, r.kinds))
            for key, text in pairs
            if isinstance(key, ast.Constant)
        ]
        return "{" + ", ".join(f"{key}: {around}" for key, around, _ in made) + "}", [
            part for _, _, parts in made for part in parts
        ]
    one = (
        "TensorDataset(*(torch.as_tensor(column) for column in given))" if r.val.arrays else "given"
    )
    if r.val.arrays and r.val.converted:
        one = f"TensorDataset(*({CONVERTED} for column, kind in zip(given, {quoted(r.val.kinds)})))"
    if named and r.hooks is None and not r.val.combined:
        return ("..." if one == "given" else f"{{name: {one} for name, given in (...).items()}}"), [
            given
        ]
    sets = (
        ("(...).iterables" if r.val.combined else "...")
        if not named
        else "(...).iterables.values()"
        if r.val.combined
        else "(...).values()"
    )
    return f'{{f"{UNNAMED}{{number}}": {one} for number, given in enumerate({sets})}}', [given]


def _tensors(given: str, kinds: Mapping[str, str]) -> tuple[str, list[str]]:
    """The expression for a TensorDataset of the arrays that were given."""
    node = ast.parse(given.strip(), mode="eval").body
    if not isinstance(node, (ast.Tuple, ast.List)) or any(
        isinstance(part, ast.Starred) for part in node.elts
    ):
        return "TensorDataset(*map(torch.as_tensor, ...))", [given]
    parts = ", ".join(
        "..." if _is_tensor(part, kinds) else "torch.as_tensor(...)" for part in node.elts
    )
    return f"TensorDataset({parts})", [
        ast.get_source_segment(given.strip(), part) or "" for part in node.elts
    ]


def _is_tensor(node: ast.expr, kinds: Mapping[str, str]) -> bool:
    """Whether an expression is certainly a tensor: a name that held one, or a part of it."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and kinds.get(node.id) == "tensor"


def _taken(r: ScriptSpec) -> set[str]:
    """The names that the user's code binds."""
    return set(r.sliced.names) | {item.binds for item in parsed_imports(r.sliced.imports)[0]}


def _rebound(r: ScriptSpec, used: set[str]) -> list[str]:
    """The built-ins that the script's text reads and the user's code rebinds."""
    found = sorted(
        name for name in used & _taken(r) & set(dir(builtins)) if not name.startswith("_")
    )
    if "super" in found:
        raise NotStandAlone(
            "`super` means something else in the code of this bench, and the script needs it:"
            " rename yours."
        )
    return found


def _renamed(r: ScriptSpec, ours: Iterable[str], imports: list[Import]) -> dict[str, str]:
    """The script's names that the user's code has too, with the names that replace them."""
    theirs = {item.binds: item.identity for item in parsed_imports(r.sliced.imports)[0]}
    taken = _taken(r)
    same = {name for name in GIVEN if r.given(GIVEN[name]) == name}
    mine = (set(ours) - same) | {
        item.binds for item in imports if theirs.get(item.binds) != item.identity
    }
    renamed = {}
    for name in sorted(mine & taken):
        new = name + "_"
        while new in taken or new in mine:
            new += "_"
        renamed[name] = new
    return renamed


def _import_lines(r: ScriptSpec, imports: list[Import], renamed: Mapping[str, str]) -> str:
    theirs, futures = parsed_imports(r.sliced.imports)
    ours = []
    for item in imports:
        if item.binds in renamed:
            ours.append(Import(item.module, item.name, renamed[item.binds]))
        elif not any(
            item.binds == other.binds and item.identity == other.identity for other in theirs
        ):
            ours.append(item)
    text = set_imports([*ours, *theirs], futures).strip()
    return "\n".join(_folded(line) for line in text.splitlines())


def _folded(line: str) -> str:
    """An import line, in brackets if it is too long, as formatters write it."""
    head, _, listed = line.partition(" import ")
    if len(line) <= 88 or not line.startswith("from ") or listed.startswith("("):
        return line
    return f"{head} import (\n" + "".join(f"    {name},\n" for name in listed.split(", ")) + ")"
