"""Writes what an object logs (`self.log`) in validations; in training a script does not use it."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program.lightning import hooks
from workbench.export.script_spec import ScriptSpec


def listening(r: ScriptSpec) -> list[str]:
    """The lines that give the object its `log`."""
    if not r.validates:
        return ["network.log = network.log_dict = lambda *_, **__: None  # not used here"]
    if r.logs_widely:
        return ["logged = Log()", "network.log, network.log_dict = logged.log, logged.log_dict"]
    return [
        "logged = {}",
        "network.log = lambda name, value, *_, **__: logged.update({name: value})",
        "network.log_dict = lambda values, *_, **__: logged.update(values)",
    ]


def log(r: ScriptSpec) -> str:
    """A class for an object that logs in more than one way, or outside its `validation_step`."""
    if not (r.hooks is not None and r.validates and r.logs_widely):
        return ""
    return dedent('''\
        class Log:
            """Collects the values that self.log receives during a validation, with their weights, and reduces them at the end."""

            def __init__(self):
                self.listening = False

            def begin(self):
                self.listening, self.kept, self.open, self.losses = True, {}, None, []

            def log(
                self, name, value, prog_bar=False, logger=None, on_step=None, on_epoch=None, reduce_fx="mean", *_,
                batch_size=None, **__
            ):
                if not self.listening or on_epoch is False:
                    return
                names = [f"{name}_epoch", name] if on_step else [name]
                kept = self.kept.setdefault((name, self.open is None), (names, reduce_fx, [], []))
                if hasattr(value, "compute"):  # a metric, which has seen it all itself
                    kept[3][:] = [value]
                    return
                pair = [float(value), 1.0 if batch_size is None else float(batch_size)]
                kept[2].append(pair)
                if batch_size is None and self.open is not None:
                    self.open.append(pair)

            def log_dict(self, values, *arguments, **options):
                for name, value in values.items():
                    self.log(name, value, *arguments, **options)

            def weigh(self, weight):
                """What was logged for this batch so far weighs so much."""
                for pair in self.open:
                    pair[1] = float(weight)
                self.open = []

            def take(self, loss, weight):
                """What `validation_step` returned, where it did not log it itself."""
                if not any(name == "val_loss" for name, _ in self.kept):
                    self.losses.append((loss, weight))

            def reduced(self):
                losses, self.listening = gather_object([self.losses]), False  # a list from each process
                found = {"val_loss": weighted_mean(losses)} if any(losses) else {}
                for names, how, pairs, objects in self.kept.values():
                    parts = gather_object([pairs])
                    values = torch.tensor([value for part in parts for value, _ in part], dtype=torch.float64)
                    if objects:
                        value = objects[0].compute()
                        objects[0].reset()
                    elif how in ("mean", "avg", torch.mean):
                        value = weighted_mean(parts)
                    else:
                        value = getattr(values, how.lower())() if isinstance(how, str) else how(values)
                    found |= dict.fromkeys(names, float(value))
                return found''')


def weighed(r: ScriptSpec, weight: str, count: str) -> list[str]:
    """The lines after a batch's step: the weight of its values, and the values that were returned."""
    ended = hooks.called(r, "on_validation_batch_end", "result", "batch", "number", network="model")
    return [
        f"logged.weigh({weight})",
        "if isinstance(loss, torch.Tensor) and loss.numel() == 1:",
        f"    logged.take(loss.item(), {weight})",
        *([*ended, f"logged.weigh({count})"] if ended else []),
        "logged.open = None",
    ]
