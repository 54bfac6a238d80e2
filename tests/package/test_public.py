"""The public surface: what Tab shows in a notebook and in an editor, and what `help` says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, get_args, get_type_hints

import jedi
import numpy as np
import pytest
import torch.nn.functional as F
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from pydantic import ConfigDict, TypeAdapter, ValidationError

import workbench as wb
from tests.combinations import every
from tests.engine.problems import labelled, plain_net
from tests.settings import kwargs
from workbench.launch.job import Job
from workbench.settings import Group, SettingsError, metadata_of
from workbench.settings.kwargs import LiveKwargs, OtherKwargs, SettingsKwargs

LIVE = [name for name in wb.Settings.model_fields if metadata_of(name).live]
TAKE_SETTINGS = (
    "set",
    "fit",
    "find_lr",
    "find_batch_size",
    "find_num_workers",
    "find_precision",
    "find_clip_val",
    "find_weight_decay",
    "find_recipe",
    "tune",
    "profile",
    "validate",
    "test",
    "predict",
    "study",
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[wb.Workbench]:
    with wb.Workbench(
        plain_net(),
        train=labelled(),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        max_steps=1,
        enable_progress_bar=False,
    ) as made:
        yield made


# -- names


def test_tab_on_the_package_shows_the_public_names() -> None:
    import workbench.engine  # a submodule becomes an attribute of the package

    assert dir(wb) == sorted(wb.__all__)
    assert workbench.engine is wb.engine  # type: ignore[attr-defined]
    assert not {"engine", "annotations", "Any", "TYPE_CHECKING", "importlib"} & set(dir(wb))


def test_a_star_import_gives_the_public_names() -> None:
    there: dict[str, Any] = {}
    exec("from workbench import *", there)
    assert there.keys() - {"__builtins__"} == set(wb.__all__)


@pytest.mark.parametrize("name", sorted(set(wb.__all__) - {"__version__"}))
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(wb, name))


@pytest.mark.parametrize("name", ["TaskError", "SettingsError", "ExportError"])
def test_the_errors_are_public_value_errors(name: str) -> None:
    assert issubclass(getattr(wb, name), ValueError)


def test_the_errors_are_those_that_a_bench_raises(bench: wb.Workbench, tmp_path: Path) -> None:
    with pytest.raises(wb.TaskError):
        wb.Workbench(plain_net(), train=None, loss=F.cross_entropy, root=tmp_path)
    with pytest.raises(wb.SettingsError):
        bench.fit(lr=-1.0)
    bench.fit(seed=2**32).result()  # numpy, which a script may draw from, takes no such seed
    with pytest.raises(wb.ExportError):
        bench.script(format="script")


def documented(kind: type, name: str) -> bool:
    """Whether the class says what this attribute is: a docstring of its own, or a line under "Attributes:"."""
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, FunctionType | classmethod | property | cached_property):
        return bool(found.__doc__)
    attributes = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    return re.search(rf"^    {name}: \S", attributes, re.MULTILINE) is not None


def test_every_public_attribute_is_documented(bench: wb.Workbench) -> None:
    job = bench.fit()
    run = job.result()
    for thing in (bench, job, run):
        public = [name for name in dir(thing) if not name.startswith("_")]
        assert [name for name in public if not documented(type(thing), name)] == []


def test_what_launches_a_job_is_not_public(bench: wb.Workbench) -> None:
    job = bench.fit()
    job.result()
    assert {name for name in dir(job) if not name.startswith("_")} == {
        "id", "kind", "folder", "histograms", "events", "output", "settings", "status", "updates", "done", "wait", "result", "exception",
        "stop", "pause", "resume", "validate", "checkpoint", "change", "watch", "waits_for",
    }  # fmt: skip


# -- completion


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    # another process may be writing the usual one
    monkeypatch.setattr(jedi.settings, "cache_directory", str(tmp_path))
    made = InteractiveShell()
    yield made
    made.history_manager.end_session()


def completed(shell: InteractiveShell, code: str) -> set[str]:
    """What a kernel offers at the end of this code (`IPythonKernel.do_complete`), without magic commands."""
    with provisionalcompleter():
        # IPython offers nothing where jedi fails, which its first call in a process may do
        for _ in range(3):
            found = [one.text for one in shell.Completer.completions(code, len(code))]
            if found:
                break
    return {text.lstrip(".") for text in found if not text.startswith("%")}


@pytest.mark.parametrize("method", every(3, TAKE_SETTINGS))
def test_a_notebook_completes_settings(
    bench: wb.Workbench, shell: InteractiveShell, method: str
) -> None:
    assert shell.Completer.use_jedi, "as in a kernel"
    shell.user_ns["bench"] = bench
    assert {"max_epochs=", "max_steps=", "max_time="} <= completed(shell, f"bench.{method}(max_")
    offered = completed(shell, f"bench.{method}(")
    assert {f"{name}=" for name in wb.Settings.model_fields} <= offered
    assert "settings=" not in offered


@pytest.mark.parametrize("jedi", [True, False])
def test_a_notebook_completes_the_settings_of_a_new_bench(
    shell: InteractiveShell, jedi: bool
) -> None:
    shell.Completer.use_jedi = jedi
    shell.user_ns["wb"] = wb
    # the completer calls no `__getattr__` of a module; a notebook has used the name by then
    _ = wb.Workbench, wb.Settings
    assert completed(shell, "wb.Workbench(max_") == {"max_epochs=", "max_steps=", "max_time="}
    assert {"train=", "loss="} <= completed(shell, "wb.Workbench(")


@pytest.mark.parametrize("jedi", [True, False])
def test_a_notebook_completes_public_names(
    bench: wb.Workbench, shell: InteractiveShell, jedi: bool
) -> None:
    shell.Completer.use_jedi = jedi
    job = bench.fit()
    shell.user_ns.update(wb=wb, bench=bench, job=job, run=job.result())
    for name in ("wb", "bench", "job", "run"):
        public = {one for one in dir(shell.user_ns[name]) if not one.startswith("_")}
        assert {one for one in completed(shell, f"{name}.") if not one.startswith("_")} == public


def test_a_notebook_completes_the_running_job(bench: wb.Workbench, shell: InteractiveShell) -> None:
    shell.user_ns.update(bench=bench, job=bench.fit())
    for name in ("bench.job", "bench.fit()"):
        assert {"pause", "resume", "stop", "status", "change", "result"} <= completed(
            shell, f"{name}."
        )
        assert not {"inbox", "ended", "run", "end", "on_event"} & completed(shell, f"{name}.")
    assert {one for one in completed(shell, "job.change(") if one.endswith("=")} == {
        f"{name}=" for name in (*LIVE, "at")
    }


# -- editors


def test_the_keyword_arguments_are_written_from_the_settings() -> None:
    assert kwargs.FILE.read_text(encoding="utf-8") == kwargs.text(), (
        "run: python -m tests.settings.kwargs"
    )


def test_the_keyword_arguments_are_the_settings() -> None:
    assert {*SettingsKwargs.__annotations__} == {*wb.Settings.model_fields}
    assert SettingsKwargs.__annotations__.keys() - OtherKwargs.__annotations__ == {"optimizer"}
    assert [*LiveKwargs.__annotations__] == LIVE
    assert SettingsKwargs.__required_keys__ == LiveKwargs.__required_keys__ == frozenset()


@pytest.mark.parametrize("method", ["__init__", *TAKE_SETTINGS])
def test_every_method_that_takes_settings_says_so(method: str) -> None:
    function = getattr(wb.Workbench, method)
    # two have an argument `optimizer`, which may be the setting
    keywords = OtherKwargs if method in ("__init__", "find_lr") else SettingsKwargs
    hints = [get_args(hint) for hint in get_type_hints(function).values()]
    assert hints.count((keywords,)) == 1
    assert {*inspect.signature(function).parameters} >= {*wb.Settings.model_fields}
    assert "    batch_size (samples, default 32): " in inspect.getdoc(function)
    assert get_args(get_type_hints(Job.change)["values"]) == (LiveKwargs,)


GIVEN: list[Any] = [
    None, True, False, 0, 1, -1, 2, 16, 0.0, 0.25, 0.5, 1.0, "00:00:10:00", timedelta(minutes=1), {"minutes": 5}, {0: 1, 4: 2},
    [0, 2], (0, 1), {0, 3}, frozenset({1}), "auto", "0,1", "ddp", "launch", "bf16", "16-mixed", "no", "inf", "warn", "norm", "value", "cosine",
    "ema", "swa", "cos", "stop", "skip", "min", "val_loss", "inductor", "cuda", wb.EarlyStopping("val_loss"), ["val_loss"],
    ({"monitor": "val_loss"}, wb.EarlyStopping("val_accuracy")), {"monitor": "val_loss"}, {"config_file": "two.yaml"}, {},
]  # fmt: skip


def is_cast(given: Any, taken: Any) -> bool:
    """Whether pydantic has made one plain type into another, which a type checker rightly reports: batch_size="16"."""
    plain = (bool, int, float, str)
    alike = {type(given), type(taken)} == {int, float}
    return (
        isinstance(given, plain)
        and isinstance(taken, plain)
        and type(given) is not type(taken)
        and not (alike and type(given) is int)
    )


@pytest.mark.parametrize("name", wb.Settings.model_fields)
def test_the_types_accept_what_the_settings_accept(name: str) -> None:
    hints = get_type_hints(SettingsKwargs)
    accepts = TypeAdapter(hints[name], config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    default = wb.Settings.model_fields[name].default
    tried = 0
    for value in [*GIVEN, default]:
        try:
            taken = getattr(wb.Settings.make(**{name: value}), name)
        except SettingsError:
            continue
        if is_cast(value, taken) and name not in ("max_time", "precision", "devices", "strategy"):
            continue
        accepts.validate_python(value)
        tried += 1
    assert tried
    with pytest.raises((ValidationError, SettingsError)):
        accepts.validate_python(np.zeros(3))


# -- help


def test_help_lists_every_setting_in_its_group() -> None:
    text = inspect.getdoc(wb.Settings) or ""
    groups = dict(
        zip(*[iter(re.split(r"^([A-Z][a-z ]+):\n", text, flags=re.MULTILINE)[1:])] * 2, strict=True)
    )
    assert [*groups] == [group.capitalize() for group in get_args(Group)]
    for group, listed in groups.items():
        names = [
            name for name in wb.Settings.model_fields if metadata_of(name).group == group.lower()
        ]
        assert re.findall(r"^    (\w+) \(", listed, re.MULTILINE) == names
        for name in names:
            field, words = wb.Settings.model_fields[name], " ".join(listed.split())
            unit = f"{metadata_of(name).unit}, " if metadata_of(name).unit else ""
            assert f"{name} ({unit}default {field.default!r}" in words
            assert " ".join(str(field.description).split()) in words


def test_help_shows_the_types_as_they_are_given() -> None:
    shown = str(inspect.signature(wb.Settings))
    assert "lr: float = 0.001" in shown
    assert "Knob" not in shown
    assert {p.name: p.default for p in inspect.signature(wb.Settings).parameters.values()} == {
        name: field.default for name, field in wb.Settings.model_fields.items()
    }
