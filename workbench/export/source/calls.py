"""Describes calls: the path of the called function, its known effects, and which libraries change nothing.

`effects.py` uses it for each call that it finds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from workbench.export.source.origins import is_inlined
from workbench.export.source.uses import DOT

SHOWING = {"matplotlib", "seaborn", "plotly", "IPython", "pprint", "warnings", "logging", "rich", "torchinfo", "pytest"}
SHOWING |= {"torchsummary", "torchviz", "ipywidgets", "bokeh", "altair", "time", "gc", "workbench"}
HARMLESS = set(
    "print display len repr str type id dir help hash isinstance issubclass callable hasattr getattr sum min max any"
    " all sorted format pprint plot scatter hist bar barh imshow show figure subplots savefig legend title set_title"
    " xlabel ylabel set_xlabel set_ylabel text annotate heatmap pairplot boxplot summary info describe head tail"
    " sample save dump dumps savez savez_compressed to_csv to_json to_parquet to_pickle log count index copy item"
    " tolist keys values items parameters named_parameters buffers named_buffers modules named_modules children"
    " named_children state_dict mean std var median size dim numel value_counts nunique unique isna isnull backward"
    " zero_grad allclose equal assert_close debug warning error exception startswith endswith join split".split()
)
PURE = re.compile(
    r"numpy\.(?!random\.|put|place|copyto|fill_diagonal|\w+\.at$).*[^_]"
    r"|torch\.(\w*[^_]|nn\.functional\.\w*[^_]|linalg\.\w+|fft\.\w+)"
    r"|torch\.(nn|optim|optim\.lr_scheduler|utils\.data|distributions)\.[A-Za-z]\w*"
    r"|(scipy|pandas|sklearn|torchmetrics|torchvision|tqdm)\..*[^_]"
    r"|(math|statistics|collections|itertools|functools|operator|copy|re|json|os\.path|glob|pathlib|datetime|string)\..*"
)
"""Functions and classes of libraries that do not change their arguments."""
TAKES_IN = {"append", "extend", "add", "insert", "update", "setdefault"}
"""Methods that change their object and not their arguments."""
IN_A_LOOP = {"train", "eval"}
CHANGING = set(
    "append extend insert pop popitem remove clear update setdefault add discard sort reverse apply load_state_dict"
    " add_module register_module register_buffer register_parameter register_forward_hook register_backward_hook"
    " register_forward_pre_hook register_full_backward_hook register_state_dict_pre_hook"
    " register_hook register_post_accumulate_grad_hook shuffle partial_fit"
    " fit_transform fit_resample setflags resize freeze unfreeze".split()
)
CHANGING_FIRST = {"setattr", "delattr", "shuffle", "heappush", "heappop", "heapify", "insort"}
OF_KIND = {
    "tensor": {"backward", "register_hook", "register_post_accumulate_grad_hook"},
    "array": {"sort", "fill", "resize", "put", "partition", "itemset", "setflags", "setfield"},
    "frame": {"insert", "pop", "update"},
    "immutable": set[str](),
    "code": set[str](),
    "module": set[str](),
}
LIBRARY = {*OF_KIND, "random", "iterator", "estimator", "list", "dict", "set", "tuple"}
UNCHANGED = ("immutable", "code", "module")
SAME_OBJECT = set(
    "parameters named_parameters modules named_modules children named_children buffers named_buffers get_submodule"
    " get_parameter values items keys view reshape detach numpy squeeze unsqueeze flatten ravel expand transpose"
    " permute iterrows get setdefault t narrow select chunk unbind diagonal swapaxes swapdims movedim moveaxis"
    " state_dict".split()
)
WRAPPERS = {"list", "tuple", "iter", "reversed", "enumerate", "zip", "filter", "sorted", "set", "dict", "chain", "vars"}
WRAPPERS |= {"random_split", "Subset", "TensorDataset", "ConcatDataset", "ChainDataset", "StackDataset", "DataLoader"}
WRAPPERS |= {"Sequential", "ModuleList", "ModuleDict", "ParameterList", "deque", "OrderedDict", "copy"}


@dataclass(frozen=True)
class Outside:
    """The effects of a function on the global names that it uses: `name`, or `module·name` in another module."""

    may: frozenset[str] = frozenset()
    does: frozenset[str] = frozenset()
    returns: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    """Globals that the functions defined in it may change when they are called: for a decorator, a table of models."""


@dataclass(frozen=True)
class Summary:
    """The effects of calling a function: the parameters it may change, those it surely changes, process state."""

    parameters: tuple[str, ...] = ()
    may: frozenset[str] = frozenset()
    does: frozenset[str] = frozenset()
    returns: frozenset[str] = frozenset()
    """The parameters whose objects, or parts of them, its result may contain."""
    state: bool = False
    outside: Outside = Outside()
    later: frozenset[str] = frozenset()
    """The parameters that functions defined in it may change when they are called: for a decorator, a class that gets a method."""
    keeps_state: bool = False
    """Whether functions defined in it change its variables, as with a counter in a closure."""


class Context(Protocol):
    """Answers the questions of `effects` about names, at the place of the statement."""

    @property
    def lazy(self) -> bool:
        """Whether models here are finished by their first call."""

    @property
    def certain(self) -> bool:
        """Whether only known changes count: not a fit, which trains, and not a call of an unknown function."""

    def dotted(self, name: str) -> str | None:
        """What `name` was imported as ("torch.nn"), or None if it was not imported."""

    def is_module(self, name: str) -> bool:
        """Whether `name` holds a module."""

    def keeps_state(self, name: str) -> bool:
        """Whether a call of the value of `name` changes that value: a counter in a closure, a list as default, an object that counts its calls."""

    def hands_out(self, name: str) -> bool:
        """Whether the callee `name` may keep a reference to what it returns: a cache, or a class with a single instance."""

    def bound_method(self, name: str) -> ast.Attribute | None:
        """The attribute that `name` was bound to, if it holds a method of some object."""

    def kind(self, name: str) -> str | None:
        """The kind of value of `name`, as `capture.kind` returns it."""

    def summary(self, name: str) -> Summary | None:
        """The effects of the function `name` (or `module·name`), if its source is known."""

    def method(self, name: str) -> Summary | None:
        """The effects of methods called `name` on "self", if known classes have such a method."""


def terminal(func: ast.expr) -> str:
    """The last name of a callee: "normal_" of `nn.init.normal_`."""
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def first_name(node: ast.expr) -> str | None:
    """The name an attribute, item or call chain starts from."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def path_of(node: ast.expr, context: Context) -> str | None:
    """The full path of a chain of attributes of an imported name ("torch.nn.init.normal_"), else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    start = context.dotted(node.id) if isinstance(node, ast.Name) else None
    return None if start is None else ".".join([start, *reversed(parts)])


def summary_of(func: ast.expr, context: Context) -> Summary | None:
    """The effects of the callee, if it is a function with a known source, also in a module of the user."""
    match func:
        case ast.Name():
            return context.summary(func.id)
        case ast.Attribute(value=ast.Name(id=root)) if context.is_module(root) and is_inlined(context.dotted(root) or root):
            return context.summary(root + DOT + func.attr)
        case _:
            return None


def arguments(call: ast.Call, parameters: tuple[str, ...], wanted: frozenset[str]) -> Iterator[ast.expr]:
    """The arguments given for the `wanted` parameters; if any is wanted, so are arguments for *args and **kwargs."""
    others = bool(wanted - set(parameters))
    for index, value in enumerate(call.args):
        name = parameters[index] if index < len(parameters) else None
        if name in wanted or (name is None and others):
            yield value
    for keyword in call.keywords:
        if keyword.arg in wanted or (keyword.arg not in parameters and others):
            yield keyword.value


def is_inplace(call: ast.Call) -> bool:
    """Whether a call has the argument `inplace=True`."""
    return any(k.arg == "inplace" and isinstance(k.value, ast.Constant) and k.value.value is True for k in call.keywords)


def reads_command_line(node: ast.AST) -> bool:
    """Whether `node` reads the command line arguments of the process."""
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return terminal(node.func) in ("parse_args", "parse_known_args")
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.argv"
