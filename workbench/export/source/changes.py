"""Finds the objects that a statement may change, besides the names that it binds.

`rows.append(1)` binds no name and changes the object `rows`: a script that has the object has the
statement, too. Python does not say what a call changes, so this module assumes it:

- A call of a function of the user changes what the code of that function changes.
- A function of a library that is known to compute (`PURE`) changes nothing.
- Another call that is a statement of its own changes its object and its arguments. Within an
  expression, only an object of an unknown kind and what a package's function is given.

A statement too many does in the script what it did in the notebook. One too few shows in the
losses when `export` runs the script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

from workbench.export.source.namespace import Definition, Namespace
from workbench.export.source.origins import is_inlined
from workbench.export.source.uses import (
    defaults,
    first_name,
    local_names,
    own_level,
    parameters,
    target_names,
    targets,
    terminal,
)

PROCESS = "the process"
"""Stands among changed names for seeds, defaults and environment variables."""
_SHOWING = {
    "matplotlib",
    "seaborn",
    "plotly",
    "IPython",
    "pprint",
    "warnings",
    "logging",
    "rich",
    "torchinfo",
    "pytest",
    "torchsummary",
    "torchviz",
    "ipywidgets",
    "bokeh",
    "altair",
    "time",
    "gc",
    "workbench",
}
_READING = set(
    "print display len repr str type id dir help hash isinstance issubclass callable hasattr"
    " getattr sum min max any all sorted format pprint plot scatter hist bar barh imshow show"
    " figure subplots savefig legend title set_title xlabel ylabel set_xlabel set_ylabel text"
    " annotate heatmap pairplot boxplot summary info describe head tail sample save dump dumps"
    " savez savez_compressed to_csv to_json to_parquet to_pickle log count index copy item tolist"
    " keys values items parameters named_parameters buffers named_buffers modules named_modules"
    " children named_children state_dict mean std var median size dim numel value_counts nunique"
    " unique isna isnull backward zero_grad allclose equal assert_close debug warning error"
    " exception startswith endswith join split".split()
)
"""Functions and methods that change nothing."""
_PURE = re.compile(
    r"numpy\.(?!random\.|put|place|copyto|fill_diagonal|\w+\.at$).*[^_]"
    r"|torch\.(\w*[^_]|nn\.functional\.\w*[^_]|linalg\.\w+|fft\.\w+)"
    r"|torch\.(nn|optim|optim\.lr_scheduler|utils\.data|distributions)\.[A-Za-z]\w*"
    r"|(scipy|pandas|sklearn|torchmetrics|torchvision|tqdm)\..*[^_]"
    r"|(math|statistics|collections|itertools|functools|operator|copy|re|json|os\.path|glob|pathlib|datetime|string)\..*"
)
"""Functions and classes of libraries that do not change their arguments."""
_TAKES_IN = {"append", "extend", "add", "insert", "update", "setdefault"}
"""Methods that change their object and not their arguments."""
CHANGING = set(
    "append extend insert pop popitem remove clear update setdefault add discard sort reverse apply"
    " load_state_dict add_module register_module register_buffer register_parameter"
    " register_forward_hook register_backward_hook register_forward_pre_hook"
    " register_full_backward_hook register_state_dict_pre_hook register_hook"
    " register_post_accumulate_grad_hook shuffle partial_fit fit_transform fit_resample setflags"
    " resize freeze unfreeze".split()
)
_CHANGING_FIRST = {"setattr", "delattr", "shuffle", "heappush", "heappop", "heapify", "insort"}
"""Functions that change their first argument."""
_OF_KIND: Mapping[str, set[str]] = {
    "tensor": {"backward", "register_hook", "register_post_accumulate_grad_hook"},
    "array": {"sort", "fill", "resize", "put", "partition", "itemset", "setflags", "setfield"},
    "frame": {"insert", "pop", "update"},
    "immutable": set(),
    "code": set(),
    "module": set(),
}
"""The only methods that change an object of these kinds (`capture.kind`)."""
_LIBRARY = {*_OF_KIND, "random", "iterator", "estimator", "list", "dict", "set", "tuple", None}
_UNCHANGED = ("immutable", "code", "module")
_SAME_OBJECT = set(
    "parameters named_parameters modules named_modules children named_children buffers"
    " named_buffers get_submodule get_parameter values items keys view reshape detach numpy squeeze"
    " unsqueeze flatten ravel expand transpose permute iterrows get setdefault t narrow select"
    " chunk unbind diagonal swapaxes swapdims movedim moveaxis state_dict".split()
)
"""Methods whose result is their object, or shares parts with it."""
_WRAPPERS = set(
    "list tuple iter reversed enumerate zip filter sorted set dict chain vars getattr random_split"
    " Subset TensorDataset ConcatDataset ChainDataset StackDataset DataLoader Sequential ModuleList"
    " ModuleDict ParameterList deque OrderedDict copy".split()
)
"""Functions and classes whose result has parts of the arguments."""
_STATE = re.compile(
    r"os\.(chdir|putenv|environ\.(update|setdefault|pop))|random\.setstate|sys\.setrecursionlimit|numpy\.random\.set_state"
    r"|torch\.(use_deterministic_algorithms|serialization\.add_safe_globals|(?!cuda\.set_device|set_printoptions)(\w+\.)*set_\w+)"
    r"|multiprocessing\.set_\w+|(\w+\.)*(?!initial|get)\w*seed\w*"
)
"""Functions that set state of the process."""

Summary = tuple[tuple[str, ...], frozenset[str]]
"""The parameters of a function, and the parameters and global names whose objects its call may
change.
"""


def changed(node: ast.AST, program: Namespace, place: int) -> frozenset[str]:
    """The names whose objects the statement `node` at a place may change, and `PROCESS`."""
    reader = _Reader(program, place)
    reader.visit(node)
    return frozenset(reader.found)


class _Reader(ast.NodeVisitor):
    """Collects the names whose objects are changed."""

    def __init__(self, program: Namespace, place: int, local: frozenset[str] | None = None) -> None:
        """local: the variables of the function whose body is read; None: it is a statement."""
        self.program, self.place = program, place
        self.inside, self.local = local is not None, local or frozenset()
        self.found: set[str] = set()
        self.derived: dict[str, frozenset[str]] = {}
        self.depth = 0

    # -- bindings of parts of objects

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._store(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._store(node.target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._store(node.target, node.value)
        self._add(self._roots(node.target))

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add(
            n
            for target in node.targets
            if not isinstance(target, ast.Name)
            for n in self._roots(target)
        )

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._add(name for name in self._roots(node.iter) if self._kind(name) == "iterator")
        self._store(node.target, node.iter)
        self._suite([*node.body, *node.orelse])

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._suite([*node.body, *node.orelse])

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._store(node.optional_vars, node.context_expr)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        self._store(node.target, node.iter)
        for test in node.ifs:
            self.visit(test)

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        for generator in node.generators:
            self.visit(generator)
        for element in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(element)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _suite(self, body: list[ast.stmt]) -> None:
        self.depth += 1
        for statement in body:
            self.visit(statement)
        self.depth -= 1

    def _store(self, target: ast.expr, value: ast.expr) -> None:
        root = first_name(target)
        if (
            isinstance(target, (ast.Attribute, ast.Subscript))
            and root is not None
            and self._is_module(root)
        ):
            path = self.program.path_of(_without_items(target), self.place) or ""
            if (
                path.partition(".")[0] not in _SHOWING
                and "display" not in path
                and not is_inlined(path)
            ):
                self.found.add(PROCESS)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            self._add(self._roots(target))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self._store(item, value)
        else:
            broad = (child.id for child in own_level(value) if isinstance(child, ast.Name))
            sources = self._expand(broad if self.inside else self._roots(value))
            for name in target_names(target):
                self.derived[name] = self.derived.get(name, frozenset()) | (sources - {name})

    # -- definitions

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:  # it may add the definition to a table
            self.visit(decorator)
            self._call(ast.Call(decorator, [], []), statement=True)
            root = first_name(decorator)
            if (
                isinstance(decorator, ast.Attribute)
                and root is not None
                and not self._is_module(root)
            ):
                self._add({root})  # `@TABLE.add`
        for statement in node.body if self.inside and isinstance(node, ast.FunctionDef) else ():
            self.visit(statement)  # the function around it may return it

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_FunctionDef(node)
        for base in node.bases:  # it may list its subclasses
            definition = self._definition(base)
            for method in [] if definition is None else definition.node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init_subclass__":
                    assert definition is not None
                    parameter_names, changes = self._summary(definition, method)
                    own = {first_name(base) or ""} if changes & {*parameter_names[:1]} else set()
                    self._add(own | changes - {*parameter_names[1:]})

    def visit_Lambda(self, node: ast.Lambda) -> None:
        if self.inside:
            self.visit(node.body)

    def visit_Assert(self, node: ast.Assert) -> None:
        return

    # -- calls

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._call(node.value, statement=True)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self._call(node)
        self.generic_visit(node)
        if terminal(node.func) in ("map", "filter") and node.args:
            function, *items = node.args
            if isinstance(function, ast.Lambda):
                for parameter, value in zip(function.args.args, items, strict=False):
                    self._store(ast.Name(parameter.arg), value)
                self.visit(function.body)
            else:
                self._call(ast.Call(function, items, []))

    def _call(self, call: ast.Call, *, statement: bool = False) -> None:
        """Add what a call changes. statement: it is a statement of its own."""
        name, root = terminal(call.func), first_name(call.func)
        path = (
            None
            if root is None or self._is_local(root)
            else self.program.path_of(call.func, self.place)
        )
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        names = {name for value in arguments for name in self._roots(value)}
        self._add(
            n
            for keyword in call.keywords
            if keyword.arg == "out"
            for n in self._roots(keyword.value)
        )
        self._add(
            name for name in names if self._kind(name) in ("random", "iterator") and name != "print"
        )
        definition = self._definition(call.func)
        if definition is not None:
            self._of_definition(call, definition)
        elif path is not None and _STATE.fullmatch(path):
            self.found.add(PROCESS)
        elif path == "pandas.set_option":
            shown = (
                call.args
                and isinstance(call.args[0], ast.Constant)
                and "display" in str(call.args[0].value)
            )
            self._add(() if shown else {PROCESS})
        elif (
            name in _READING
            or name.startswith("clip_grad_")
            or (path or "").partition(".")[0] in _SHOWING
            or (path is not None and _PURE.fullmatch(path) and not _is_inplace(call))
        ):
            return
        elif isinstance(call.func, ast.Attribute) and path is None:
            self._of_method(call, call.func, statement)
        else:
            self._of_function(call, statement, is_package=path is not None)

    def _of_definition(self, call: ast.Call, definition: Definition) -> None:
        """Add what a function or a class of the user changes."""
        node = definition.node
        if isinstance(node, ast.ClassDef):
            methods = [
                statement
                for statement in node.body
                if isinstance(statement, ast.FunctionDef)
                and statement.name in ("__init__", "__enter__")
            ]
            for method in methods:
                parameter_names, changes = self._summary(definition, method)
                self._of_parameters(call, parameter_names[1:], changes - {*parameter_names[:1]}, {})
            return
        parameter_names, changes = self._summary(definition, node)
        self._of_parameters(call, parameter_names, changes, defaults(node.args))

    def _of_parameters(
        self,
        call: ast.Call,
        own: tuple[str, ...],
        changes: frozenset[str],
        usual: Mapping[str, ast.expr],
    ) -> None:
        arguments = {
            **dict(zip(own, call.args, strict=False)),
            **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in own},
        }
        others = [
            *call.args[len(own) :],
            *(keyword.value for keyword in call.keywords if keyword.arg not in own),
        ]
        for name in changes:
            if name not in own:
                self._add({name})
            elif name in arguments:
                self._add(self._roots(arguments[name]))
            elif name in usual:  # it is the default, `into=[]`, which the function keeps
                self._add({first_name(call.func) or ""})
            else:
                self._add(n for value in others for n in self._roots(value))

    def _of_method(self, call: ast.Call, func: ast.Attribute, statement: bool) -> None:
        name, kind = func.attr, self._kind(first_name(func))
        in_place = (name.endswith("_") and not name.startswith("_")) or _is_inplace(call)
        changes = name in CHANGING and kind not in ("frame", "tensor", "array", "immutable")
        changes = (
            changes
            or name in _OF_KIND.get(kind or "", ())
            or in_place
            or kind in ("random", "iterator")
        )
        if kind == "estimator":
            changes = name.startswith(("fit", "partial_fit", "set_"))
        reads = (
            name in _SAME_OBJECT
            or name == "forward"
            or (self.depth > 0 and name in ("train", "eval"))
        )
        if changes or (
            not reads and (kind not in _LIBRARY or (statement and kind not in _OF_KIND))
        ):
            self._add(self._roots(func.value))
        if statement and not reads and name not in _TAKES_IN:
            self._add_arguments(call)

    def _of_function(self, call: ast.Call, statement: bool, *, is_package: bool) -> None:
        name, root = terminal(call.func), first_name(call.func)
        if isinstance(call.func, ast.Name) and self._kind(name) == "network":
            self._add({name} if self.program.slicer.lazy else ())
            return
        if name == "next" and call.args:
            moved = ("iterator", None) if isinstance(call.args[0], ast.Name) else ("iterator",)
            self._add(name for name in self._roots(call.args[0]) if self._kind(name) in moved)
        elif call.args and (name in _CHANGING_FIRST or _is_inplace(call)):
            self._add(self._roots(call.args[0]))
        elif isinstance(call.func, ast.Name) and (
            name in self.derived
            or (name not in self.local and self.program.is_object(name, self.place))
        ):
            self._add({name})  # a closure, or an object that may count its calls
        if statement or is_package:
            self._add_arguments(call)
            self._add(
                {root}
                if root is not None and isinstance(call.func, ast.Attribute) and not is_package
                else ()
            )

    def _add_arguments(self, call: ast.Call) -> None:
        for value in [*call.args, *(keyword.value for keyword in call.keywords)]:
            self._add(name for name in self._roots(value) if self._kind(name) not in _UNCHANGED)

    # -- names

    def _add(self, names: Iterable[str]) -> None:
        self.found |= self._expand(names)

    def _expand(self, names: Iterable[str]) -> set[str]:
        reached: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name and name not in reached:
                reached.add(name)
                left += self.derived.get(name, ())
        return reached

    def _is_local(self, name: str) -> bool:
        return name in self.local or name in self.derived

    def _kind(self, name: str | None) -> str | None:
        return None if name is None or self._is_local(name) else self.program.kind(name)

    def _is_module(self, name: str) -> bool:
        return not self._is_local(name) and self.program.is_module(name, self.place)

    def _roots(self, node: ast.expr) -> frozenset[str]:
        return roots(node, self.program, self.place)

    def _definition(self, func: ast.expr) -> Definition | None:
        """The function or class of the user that is called: `f`, `helpers.f`, `register("net")`."""
        root = first_name(func)
        if root is None or self._is_local(root):
            return None
        while isinstance(func, ast.Call):
            func = func.func
        return self.program.definition(func, self.place)

    def _summary(self, definition: Definition, node: ast.FunctionDef) -> Summary:
        """The effects of calling a function, with the names of another module spelt as such."""
        known, home = self.program.slicer.summaries, definition.program
        parameter_names = tuple(parameters(node.args))
        if node not in known:
            known[node] = parameter_names, frozenset()  # the answer for recursive calls
            local = frozenset(local_names(node))
            reader = _Reader(home, home.end, local)
            for statement in node.body:
                reader.visit(statement)
            names = reader.found & {*parameter_names} | {
                n for n in reader.found - local if n not in reader.derived
            }
            known[node] = (
                parameter_names,
                frozenset(
                    n
                    for n in names
                    if n in parameter_names or home.kind(n) not in ("immutable", "module")
                ),
            )
        if home is self.program:
            return known[node]
        spelled = (
            n if n in parameter_names or n == PROCESS or "·" in n else f"{home.name}·{n}"
            for n in known[node][1]
        )
        return parameter_names, frozenset(spelled)


def _is_inplace(call: ast.Call) -> bool:
    name = terminal(call.func)
    in_place = any(
        k.arg == "inplace" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in call.keywords
    )
    return in_place or (name.endswith("_") and not name.startswith("_"))


def _without_items(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


# ---- the objects that names may have -------------------------------------------------------------


def roots(node: ast.expr, program: Namespace, place: int) -> frozenset[str]:
    """The names whose objects, or parts of them, the value of `node` is or contains."""

    def of(nodes: Iterable[ast.expr]) -> frozenset[str]:
        return frozenset(name for child in nodes for name in roots(child, program, place))

    match node:
        case ast.Name():
            return frozenset({node.id})
        case ast.Attribute() | ast.Subscript() | ast.Starred() | ast.NamedExpr() | ast.Await():
            return of([node.value])
        case (
            ast.Tuple(elts=items)
            | ast.List(elts=items)
            | ast.Set(elts=items)
            | ast.Dict(values=items)
            | ast.BoolOp(values=items)
        ):
            return of(items)
        case ast.IfExp():
            return of([node.body, node.orelse])
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
            return of(child.iter for child in node.generators)
        case ast.BinOp():
            return frozenset(
                name
                for name in of([node.left, node.right])
                if program.kind(name) in ("list", "tuple")
            )
        case ast.Call(func=ast.Lambda(body=value)):
            return of([value])
        case ast.Call():
            return _of_result(
                node,
                program,
                place,
                of([*node.args, *(keyword.value for keyword in node.keywords)]),
                of,
            )
        case _:
            return frozenset()


def _of_result(
    call: ast.Call, program: Namespace, place: int, given: frozenset[str], of: object
) -> frozenset[str]:
    """The names whose objects the result of a call may contain."""
    assert callable(of)
    name, path = terminal(call.func), program.path_of(call.func, place)
    if _trains(path):
        trained: frozenset[str] = of(call.args)
        return trained
    if name in _WRAPPERS:
        return given
    if path is not None and _PURE.fullmatch(path):
        return frozenset()
    if program.definition(call.func, place) is not None:
        return given
    if isinstance(call.func, ast.Call) and terminal(call.func.func) in ("attrgetter", "itemgetter"):
        return given
    if isinstance(call.func, ast.Attribute) and (name in _SAME_OBJECT or name not in _READING):
        of_object: frozenset[str] = of([call.func.value])
        plain = name not in _SAME_OBJECT and any(program.kind(n) in _OF_KIND for n in of_object)
        return frozenset() if plain else of_object
    return frozenset()


def _trains(path: str | None) -> bool:
    """Whether it is an optimizer of torch, a scheduler, or a Workbench: its steps change what it
    is given.
    """
    return path is not None and (path.startswith("torch.optim.") or path == "workbench.Workbench")


def parts_of(program: Namespace, names: Iterable[tuple[str, int]]) -> set[tuple[int, str]]:
    """The bindings (statement, name) of these names, each at its place, and of all objects that
    their values may contain.
    """
    bindings: set[tuple[int, str]] = set()
    left = list(names)
    while left:
        name, index = left.pop()
        scope = program.statements[index].scope if index < program.end else 1
        for at in program.reaching(name, index, scope):
            if (at, name) in bindings:
                continue
            node = program.statements[at].node
            together = (
                {t.id for t in node.targets if isinstance(t, ast.Name)}
                if isinstance(node, ast.Assign)
                else set()
            )
            bindings |= {(at, bound) for bound in (together if name in together else {name})}
            for child in own_level(node):
                value = child.iter if isinstance(child, ast.For) else getattr(child, "value", None)
                if value is not None and any(
                    name in target_names(target) for target in targets(child)
                ):
                    sources = roots(value, program, at) | (
                        {name} if isinstance(child, ast.AugAssign) else set()
                    )
                    left += [(source, at) for source in sources]
    return bindings


def is_needed(program: Namespace, name: str, place: int, model: set[tuple[int, str]]) -> bool:
    """Whether the object that `name` has at `place`, where it changes, is needed, or may share a
    part with one that is.

    model: the bindings of the parts of the model. If an optimizer or another Workbench changes
    them, it trains them; a script reads the weights from the run.
    """
    held = parts_of(program, [(name, place)])
    if not program.name and any(makes_trainer(program, at) for at, _ in held):
        held -= {
            (at, bound)
            for at, bound in held & model
            if not _is_taken(program, at, bound, place, model)
        }
    return not program.needed.isdisjoint(held)


def makes_trainer(program: Namespace, place: int) -> bool:
    """Whether a statement makes an optimizer of torch, a scheduler, or a Workbench."""
    calls = (
        child for child in own_level(program.statements[place].node) if isinstance(child, ast.Call)
    )
    return any(_trains(program.path_of(call.func, place)) for call in calls)


def _is_taken(
    program: Namespace, at: int, name: str, place: int, model: set[tuple[int, str]]
) -> bool:
    """Whether a kept statement after `place` makes another object from `name`: a copy has the
    weights of that time.
    """
    after = (other for other in program.kept if other > place)
    takes = (
        other
        for other in after
        if name in program.uses[other].eager and at in program.reaching(name, other)
    )
    return any(
        (other, bound) in program.needed - model
        for other in takes
        for bound in program.bound(other)
    )
