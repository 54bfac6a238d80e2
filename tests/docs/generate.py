"""Writes the pages of the reference that the code defines: `python -m tests.docs.generate`.

`docs/reference/settings.md` follows from `workbench/settings/settings.py`, `docs/reference/events.md` from `workbench/events/`,
`docs/reference/cli.md` from `workbench/cli/`. A test compares the files with what this module makes.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin

import click

from tests.docs.pages import DOCS
from workbench import cli, events
from workbench.metric_mode import HIGHER, LOWER, WEAK
from workbench.settings import Group, Settings, metadata_of
from workbench.values import EarlyStopping

SETTINGS_HEAD = """\
<!-- Written by `python -m tests.docs.generate` from workbench/settings/settings.py. -->
# Settings

Give a setting to `wb.Workbench(…)`, to `bench.set(…)`, or to one job: `bench.fit(lr=1e-3)`. A job's settings hold for that job alone.
`bench.settings` is frozen. `help(wb.Settings)` prints this list.

- Names are those of Lightning 2 where it has one. A typo raises an error that names the nearest setting.
- Epochs and updates count from zero. An *update* is one step of the optimizer.
- Where several units make sense, the type decides. An int counts: `limit_train_batches=1` is one batch. A float is a fraction: `1.0`
  is all of them. A string is a time: `val_check_interval="00:00:10:00"` is every ten minutes. A `timedelta` or a dict such as
  `{"minutes": 10}` is a time too.
- You can change a *live* setting while a fit runs: `job.change(lr=1e-4)`.
- A setting that has no effect on your data or job raises an error, which says what decides instead. One that needs another
  setting (`ema_decay` needs `weight_averaging`) may be `set` before it: then the fit raises the error.
"""
EXAMPLES = {
    "optimizer": "'adamw' {'sgd': {'momentum': 0.9}}", "lr": "3e-4", "weight_decay": "0.01", "batch_size": "64",
    "accumulate_grad_batches": "4 {0: 8, 4: 2}", "gradient_clip_val": "1.0", "warmup": "100 0.05", "min_lr_ratio": "0.1",
    "decay_fraction": "0.1", "lr_power": "1.0", "restarts": "5", "compile": "True 'max-autotune' {'dynamic': True}",
    "max_epochs": "20 -1", "min_epochs": "3", "max_steps": "5000", "min_steps": "500", "max_time": "'00:02:30:00' {'hours': 2}",
    "num_workers": "4", "prefetch_factor": "4", "reload_dataloaders_every_n_epochs": "1", "limit_train_batches": "100 0.1",
    "limit_val_batches": "10 0.5", "limit_test_batches": "10", "limit_predict_batches": "10", "overfit_batches": "4 0.01",
    "fast_dev_run": "3", "check_val_every_n_epoch": "5 None", "val_check_interval": "500 0.25 '00:00:10:00'",
    "num_sanity_val_steps": "0 -1", "early_stopping": "{'monitor': 'val_loss', 'patience': 5}", "ema_decay": "0.9999",
    "averaging_every_n_steps": "10", "averaging_start": "100", "averaging_start_epoch": "2", "swa_epoch_start": "15 0.75",
    "swa_lrs": "0.05", "annealing_epochs": "5", "truncated_bptt_steps": "32", "tbptt_time_dim": "0", "find_lr_at": "0 {0, 5}",
    "find_batch_size_at": "0", "track_grad_norm": "'inf' 1.0 None", "layer_history_mb": "1024 None", "log_every_n_steps": "10",
    "checkpoint_every": "500 '00:00:10:00'", "save_top_k": "3 -1", "monitor": "'val_accuracy'", "keep_runs": "200", "keep_start": "2000 0",
    "devices": "2 [0, 2]", "num_nodes": "2", "launch": "{'config_file': 'two.yaml'}", "rank_timeout": "1800", "seed": "1",
}  # fmt: skip
"""Values other than the default, as code. Those of the other settings are words or True and False, which their types tell."""
STOPPING_HEAD = """
## EarlyStopping

`early_stopping=wb.EarlyStopping("val_loss", patience=5)` ends a fit, `early_stopping={"monitor": "val_loss", "patience": 5}` is the
same, and a list has several rules. In a YAML file write the dict.

**What `monitor` takes**, here and as the setting:

- `"train_loss"` is there always. `"val_loss"` is the loss on `val=`.
- `"val_accuracy"` is the metric `accuracy` of `metrics={"accuracy": f}`. Each of these metrics gets `val_` before its name.
- A LightningModule has the names that it gives to `self.log`.
- `"val_loss/hard"` is the loss on one of several sets, `val={"easy": …, "hard": …}`.
- `"val_loss_averaged"` is that of the averaged weights, with `weight_averaging`.

A name that nothing reports is an error, which lists the names that there are.

**What `mode` takes**: `"min"` and `"max"`. Without it the last word of the name that is known decides.

"""
STOPPING_TABLE = """
A name without any of these words counts as `"min"` for early stopping, and is an error for `monitor`.

| argument | default | example | what it does |
|---|---|---|---|
"""
STOPPING_EXAMPLES = {
    "monitor": '"val_accuracy"', "mode": '"max"', "min_delta": "0.001", "patience": "10", "warmup": "5",
    "stopping_threshold": "0.99", "divergence_threshold": "10.0", "check_finite": "False", "restore_best": "True",
}  # fmt: skip
EVENTS_HEAD = """\
<!-- Written by `python -m tests.docs.generate` from workbench/events/. -->
# Events

A job reports what it does as events: frozen dataclasses of plain data. `job.events` and `run.events` are sequences of them. A
listener is a function of one event: `wb.Workbench(…, listeners=[f])`, or `bench.subscribe(f)`. The record of a run holds the same
events, a line of JSON each.

The bench calls listeners in your process, away from the training loop. An error in a listener becomes one message, and the run
continues. [Listen to a run](../howto/listeners.md) has examples.

Ignore events that you do not know: later versions may add some.
"""
CLI_HEAD = """\
<!-- Written by `python -m tests.docs.generate` from workbench/cli/. -->
# Command line

`pip install tuning-workbench` installs the command `workbench`. A run is named by its id (`0012-fit`) or its number (`12`).
"""
UNRECORDED = """
## Of the bench, not recorded

Listeners also receive these. They tell a view what to show, and no record holds them.
"""


def settings() -> str:
    """The page of all settings."""
    parts = [SETTINGS_HEAD]
    for group in get_args(Group):
        rows = [
            _setting(name) for name in Settings.model_fields if metadata_of(name).group == group
        ]
        parts.append(
            f"\n## {group.capitalize()}\n\n| setting | default | unit | examples | what it does |\n"
            "|---|---|---|---|---|\n" + "".join(rows)
        )
    rules = [
        f"| `{name}` | {_default(field.default)} | `{STOPPING_EXAMPLES[name]}` |"
        f" {_cell(field.description)} |\n"
        for name, field in EarlyStopping.model_fields.items()
    ]
    modes = [
        f"- {meaning}: {', '.join(f'`{word}`' for word in sorted(words))}.\n"
        for meaning, words in (("Lower is better", LOWER), ("Higher is better", HIGHER | WEAK))
    ]
    return "".join([*parts, STOPPING_HEAD, *modes, STOPPING_TABLE, *rules])


def _setting(name: str) -> str:
    field, item = Settings.model_fields[name], metadata_of(name)
    live = " *Live.*" if item.live else ""
    shown = ", ".join(f"`{example}`" for example in examples(name))
    return (
        f"| `{name}` | {_default(field.default)} | {item.unit} | {shown} |"
        f" {_cell(field.description)}{live} |\n"
    )


def examples(name: str) -> list[str]:
    """Values of a setting, as code: those listed here, and the words that its type has."""
    field = Settings.model_fields[name]
    values = EXAMPLES.get(name, "")
    listed = re.findall(r"\{[^ ].*?\}+(?= |$)|\[.*?\]|[^ ]+", values)
    known = [repr(value) for value in _choices(field.annotation)]
    return listed or [value for value in known if value != repr(field.default)]


def _choices(hint: Any) -> Iterator[object]:
    """The values that a type names."""
    if hint is bool:
        yield from (True, False)
    elif get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for inner in get_args(hint):
            yield from _choices(inner)


def _default(value: Any) -> str:
    return "required" if repr(value) == "PydanticUndefined" else f"`{value!r}`"


def _cell(text: Any) -> str:
    """Text for a cell of a table, where a bar would end it; what looks like code or HTML stays text."""
    return re.sub(r"(\{[^}]*\})", r"`\1`", " ".join(str(text).split()).replace("|", "\\|"))


def event_page() -> str:
    """The page of all events and their fields."""
    recorded = get_args(events.Event)
    rest = [kind for kind in get_args(events.BenchEvent) if kind not in recorded]
    return "".join([EVENTS_HEAD, *map(_event, recorded), UNRECORDED, *map(_event, rest)])


def _event(kind: type) -> str:
    first, *others = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    text = "\n\n".join([first, *others])
    known = {name: f": {doc}" for name, doc in _docs(kind)}
    rows = [
        f"| `{f.name}` | `{_type(f.type)}` | {'' if f.default is MISSING and f.default_factory is MISSING else 'optional'} | "
        f"{_cell(known.get(f.name, '').removeprefix(': '))} |\n"
        for f in fields(kind)
    ]
    return (
        f"\n## {kind.__name__}\n\n{text}\n\n| field | type | | meaning |\n|---|---|---|---|\n"
        + "".join(rows)
    )


def _type(hint: Any) -> str:
    return str(hint).replace("|", "\\|")


def _docs(kind: type) -> Iterator[tuple[str, str]]:
    """The fields of a class that have a line of their own, and the line."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(field.target, ast.Name)
        ):
            yield field.target.id, str(ast.literal_eval(text.value))


def command_line() -> str:
    """The page of the command `workbench`."""
    return CLI_HEAD + "".join(_command(cli.main, "workbench"))


def _command(command: click.Command, name: str) -> Iterator[str]:
    """A command and those in it: how it is called, what it does, its options."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"\n## {name}\n\n```\n{usage}\n```\n"
    yield from map(_paragraph, inspect.cleandoc(command.help or "").split("\n\n"))
    options = [one for one in command.params if isinstance(one, click.Option)]
    records = [
        record
        for one in options
        if one.name not in ("help", "version") and (record := one.get_help_record(context))
    ]
    if records:
        yield "\n| option | |\n|---|---|\n" + "".join(
            f"| `{option}` | {_cell(meaning)} |\n" for option, meaning in records
        )
    if command.epilog and (name == "workbench" or not isinstance(command, click.Group)):
        yield _paragraph(command.epilog)
    if isinstance(command, click.Group):
        for child, inner in command.commands.items():
            yield from _command(inner, f"{name} {child}")


def _paragraph(text: str) -> str:
    """A paragraph of help; click shows one that begins with a backspace line by line."""
    kept = text.strip().removeprefix("\b\n")
    return f"\n{kept}\n" if kept == text.strip() else f"\n```\n{kept}\n```\n"


PAGES = {
    DOCS / "reference" / "cli.md": command_line,
    DOCS / "reference" / "settings.md": settings,
    DOCS / "reference" / "events.md": event_page,
}

if __name__ == "__main__":
    for path, make in PAGES.items():
        path.write_text(make(), encoding="utf-8")
