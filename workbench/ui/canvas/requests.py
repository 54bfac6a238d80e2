"""Carries out the user's actions in the canvas, and shows the line of code for each."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from workbench.events import BenchEvent, Called
from workbench.export.file_format import Choice
from workbench.ui import texts
from workbench.ui.bench import Bench
from workbench.ui.canvas.runs.pending_deletions import PendingDeletions
from workbench.ui.controls.widget_utils import aside

REMEDIES = {
    f"bench.{name}": name
    for name in (
        "set",
        "find_lr",
        "find_batch_size",
        "find_num_workers",
        "find_precision",
        "find_clip_val",
        "find_weight_decay",
    )
}
"""The calls that a finding may advise."""


class ScriptForm(Protocol):
    """The methods of the script form that the canvas calls."""

    def open(self, run: str) -> None:
        """Show the script of this run."""

    def choose(self, format: Choice) -> None:
        """Show and write it in this format."""

    def choose_option(self, option: str, wanted: bool) -> None:
        """Show and write it with this option, or without it."""

    def write(self, path: str) -> None:
        """Write it to this file."""

    def close(self) -> None:
        """Close the form."""


class CanvasRequests:
    """Carries out requests of the canvas. `failed` shows an error to the user.

    `tell` gives the panel an event that the bench does not emit, after all events of the bench;
    `continue_` continues a run, `rerun` repeats one. answer: returns the settings that apply the
    result of this kind of search; settings_of: those with which this job ran; choose_optimizer:
    chooses the optimizer whose rate Find sweeps; see_runs: shows the table of runs as a request
    says.
    """

    def __init__(
        self,
        bench: Bench,
        failed: Callable[[Exception, str], None],
        export: ScriptForm,
        refresh: Callable[[], None],
        tell: Callable[[BenchEvent], None],
        continue_: Callable[[str], None],
        rerun: Callable[[str], None],
        deletions: PendingDeletions,
        answer: Callable[[str], dict[str, Any]],
        settings_of: Callable[[str], dict[str, Any]],
        choose_optimizer: Callable[[int], None],
        see_runs: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._bench, self._failed, self._export = bench, failed, export
        self._refresh, self._tell, self._deletions = refresh, tell, deletions
        self._continue, self._rerun, self._answer = continue_, rerun, answer
        self._settings_of, self._choose_optimizer = settings_of, choose_optimizer
        self._see_runs = see_runs
        self._wanted: tuple[str, ...] = ()
        self._comparing = threading.Lock()
        """Serializes comparisons; of several that wait, only the last one is made."""

    def __call__(self, message: Mapping[str, Any]) -> None:
        try:
            self._do(message)
        except Exception as error:  # noqa: BLE001 - shown to the person who clicked
            self._failed(
                error, texts.ACTIONS.get(str(message.get("what", "")), texts.ACTIONS["canvas"])
            )

    def _do(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"what": "use", "kind": str(kind)}:
                self._bench.set(**self._answer(kind))
            case {"what": "choose_optimizer", "number": int(number)}:
                self._choose_optimizer(number)
            case {"what": "restore", "run": str(run)}:
                self._bench.set(**self._settings_of(run))
            case {"what": "use_batch_size", "value": int(size), "batches": int(many)}:
                self._bench.set(batch_size=size, accumulate_grad_batches=many)
            case {"what": "use_batch_size", "value": int(size)}:
                self._bench.set(batch_size=size)
            case {"what": "stop", "job": str(id)}:
                next(job for job in self._bench.jobs if job.id == id and not job.done()).stop()
            case {"what": "stop_all"}:
                for job in list(self._bench.jobs):
                    if not job.done():
                        job.stop()
                self._tell(Called("[job.stop() for job in bench.jobs]"))
            case {"what": "export", "run": str(run)}:
                self._export.open(run)
            case {"what": "write_script", "path": str(path)}:
                self._export.write(path)
            case {
                "what": "choose_format",
                "format": (
                    "script" | "notebook" | "settings" | "lightning" | "workbench" | "page"
                ) as format,
            }:
                self._export.choose(format)
            case {
                "what": "choose_option",
                "option": "resume" | "checks" | "log_file" | "tracker" as option,
                "wanted": bool(is_wanted),
            }:
                self._export.choose_option(option, is_wanted)
            case {"what": "close_script"}:
                self._export.close()
            case {"what": "show", "run": str(run)}:
                self._bench.show(run or None)
            case {"what": "continue", "run": str(run)}:
                self._continue(run)
            case {"what": "rerun", "run": str(run)}:
                self._rerun(run)
            case {"what": "delete", "runs": list(runs)}:
                self._deletions.add([*map(str, runs)])
            case {"what": "undo_delete", "number": int(number)}:
                self._deletions.undo(number)
            case {"what": "annotate", "run": str(run), **given}:
                self._bench.annotate(
                    run,
                    **{
                        name: given[name]
                        for name in ("name", "notes", "tags", "pinned")
                        if name in given
                    },
                )
            case {"what": "compare", "runs": list(runs)}:
                self._wanted = wanted = tuple(map(str, runs))
                aside(
                    lambda: self._compare(wanted),
                    lambda error: self._failed(error, texts.ACTIONS["compare"]),
                    "compare",
                )
            case {"what": "see_runs"}:
                self._see_runs(message)
            case {"what": "refresh"}:
                self._refresh()
            case {"what": "use_clip", "value": float(clip) | int(clip)}:
                self._bench.set(gradient_clip_val=clip)
            case {"what": "monitor", "name": str(name), "mode": "min" | "max" | None as mode}:
                self._monitor(name, mode)
            case {"what": "remedy", "code": str(code), "stop": bool(stop)}:
                self._remedy(code, stop)
            case {"what": "measure_ratios", "on": bool(on)}:
                self._measure_ratios(on)
            case {"what": "histograms", "layers": list(layers)}:
                self._bench.job.histograms([*map(str, layers)])
            case _:
                raise ValueError(texts.unknown_request(dict(message)))

    def _monitor(self, name: str, mode: Literal["min", "max"] | None) -> None:
        """Choose the best checkpoints of the next fit by this metric. mode: whether lower or
        higher is better; None: as its name says.
        """
        if self._bench.settings.monitor_mode == mode:
            self._bench.set(monitor=name)
        else:
            self._bench.set(monitor=name, monitor_mode=mode)

    def _compare(self, runs: tuple[str, ...]) -> None:
        """Compare these runs; empty: end the comparison."""
        with self._comparing:
            if self._wanted == runs:
                self._bench.compare(*runs)

    def _measure_ratios(self, on: bool) -> None:
        """Measure update ratios, or stop, in the running fit and in later ones."""
        job = self._bench.job
        going = job is not None and job.kind == "fit" and job.status in ("running", "paused")
        if going:
            job.change(track_update_ratio=on)
        self._bench.set(track_update_ratio=on)
        if going:  # each call has shown its own line, and only the last one would be seen
            self._tell(
                Called(
                    f"bench.job.change(track_update_ratio={on}); bench.set(track_update_ratio={on})"
                )
            )

    def _remedy(self, code: str, stop: bool) -> None:
        """Carry out the line of code that a finding advises; `stop`: first stop the running fit,
        for whose end a search would wait.

        The line may come from a record of an untrusted source: it is parsed as one call with plain
        values, never executed.
        """
        method, values = remedy(code)
        call = getattr(self._bench, method)
        job = self._bench.job
        if stop and job is not None and not job.done():
            job.stop()
            call(**values)
            self._tell(Called(f"bench.job.stop(); {code}"))
        else:
            call(**values)


def remedy(code: str) -> tuple[str, dict[str, Any]]:
    """The bench's method and the arguments in a finding's line of code. Raises ValueError for
    any other line.
    """
    try:
        call = ast.parse(code, mode="eval").body
        if (
            isinstance(call, ast.Call)
            and not call.args
            and (method := REMEDIES.get(ast.unparse(call.func)))
        ):
            values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
            if None not in values:  # **values
                return method, {str(name): value for name, value in values.items()}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise ValueError(texts.unknown_remedy(code, [*REMEDIES]))
