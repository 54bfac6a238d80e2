"""Writes early stopping: with the same metrics the script ends at the same update."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.inputs.collect import quoted
from workbench.export.program.lines import call, indented
from workbench.export.script_spec import ScriptSpec
from workbench.values import EarlyStopping


def stopping(r: ScriptSpec) -> str:
    """A class that follows one metric, with the options that the run's monitors use."""
    if not r.monitors:
        return ""
    takes = _takes(r)
    options = [option for name, option in _OPTIONS.items() if name in takes]
    head = call("def ", "__init__", ["self", "monitor", "patience", *options], 5)
    head[-1] += ":"
    kept = "".join(f"        self.{name} = {name}\n" for name in takes)
    text = dedent('''\
        class EarlyStopping:
            """Says after a check whether its metric gives a reason to end the run."""

        @@
                self.monitor, self.patience = monitor, max(1, patience)
        ''').replace("@@", "\n".join(indented(head)))
    text += f'{kept}        self.best, self.waited = float("inf"), 0\n'
    if "warmup" in takes:
        text += "        self.checks = 0\n"
    return text + "\n" + _ends(takes)


_OPTIONS = {
    "sign": "sign=1.0",
    "min_delta": "min_delta=0.0",
    "warmup": "warmup=0",
    "good": 'good=-float("inf")',
    "bad": 'bad=float("inf")',
    "finite": "finite=True",
}
"""The options of `EarlyStopping` besides the metric and its patience; each is written where a monitor needs it."""


def _takes(r: ScriptSpec) -> list[str]:
    needed = {name for monitor in r.monitors for name in _given(monitor)}
    return [name for name in _OPTIONS if name in needed]


def _given(monitor: EarlyStopping) -> dict[str, str]:
    """The arguments of one monitor, besides its metric and its patience."""
    sign = 1 if monitor.direction == "min" else -1
    given = {"sign": "-1.0"} if sign < 0 else {}
    if monitor.min_delta:
        given["min_delta"] = repr(monitor.min_delta)
    if monitor.warmup:
        given["warmup"] = repr(monitor.warmup)
    if monitor.stopping_threshold is not None:
        given["good"] = repr(sign * monitor.stopping_threshold)
    if monitor.divergence_threshold is not None:
        given["bad"] = repr(sign * monitor.divergence_threshold)
    if not monitor.check_finite:
        given["finite"] = "False"
    return given


def _ends(takes: list[str]) -> str:
    value = "self.sign * scores[self.monitor]" if "sign" in takes else "scores[self.monitor]"
    signed = "  # lower is better" if "sign" in takes else ""
    better = "value + self.min_delta < self.best" if "min_delta" in takes else "value < self.best"
    lines = ["def ends(self, scores):", f"    value = {value}{signed}"]
    if "warmup" in takes:
        lines.append("    self.checks += 1")
    finite = "self.finite and not math.isfinite(value)" if "finite" in takes else "not math.isfinite(value)"
    lines += [f"    if {finite}:", "        return True", f"    if {better}:", "        self.best, self.waited = value, 0"]
    if "warmup" in takes:
        lines.append("    elif self.checks > self.warmup:")
    else:
        lines.append("    else:")
    lines.append("        self.waited += 1")
    reasons = [*(["value < self.good"] if "good" in takes else []), *(["value > self.bad"] if "bad" in takes else [])]
    lines.append(f"    return {' or '.join([_STALLED, *reasons])}")
    return "\n".join("    " + line for line in lines)


_STALLED = "self.waited >= self.patience"


def made(r: ScriptSpec) -> list[str]:
    """The lines that make the monitors."""
    listed = []
    for monitor in r.monitors:
        given = [f"{name}={value}" for name, value in _given(monitor).items()]
        listed.append(f"EarlyStopping({', '.join([quoted(monitor.monitor), str(monitor.patience), *given])})")
    if len(listed) == 1:
        return [f"monitors = [{listed[0]}]"]
    return ["monitors = [", *(f"    {one}," for one in listed), "]"]


