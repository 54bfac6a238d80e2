"""Defines StudyView: what a study looks like, as charts, a table, a script and an Optuna study."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench.study_start import bench_of, open_start
from workbench.export.errors import ExportError
from workbench.export.file_format import PAGES
from workbench.launch.study.followed import FollowedStudy
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import with_picture
from workbench.runs.tables.render import html_table, text_table
from workbench.settings import SettingsError
from workbench.settings.space import assigned, text_of
from workbench.tuners.study.charts import study_data
from workbench.tuners.study.to_optuna import to_optuna
from workbench.units import fit_length, number
from workbench.values import shown

if TYPE_CHECKING:
    import optuna
    from matplotlib.axes import Axes

    from workbench.plots.drawing.interactive import Interactive
    from workbench.plots.drawing.picture import Picture

PLOTS = ("cost", "slices", "importance", "curves")
_ROWS = 40
"""The most trials of a table; the others are counted."""
_PAGE_ROWS = 1000
"""The most trials of the table in a page of its own."""


class TrialRows(list[dict[str, Any]]):
    """The rows of `study.table()` and `study.compared`; they print as a table."""

    def __repr__(self) -> str:
        names = [*dict.fromkeys(name for row in self for name in row)]
        cells = [[_cell(name, row.get(name)) for name in names] for row in self]
        return text_table([names, *cells]) if cells else "no rows"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "length":
        return fit_length(value)
    if name == "settings" and isinstance(value, Mapping):
        return assigned(value)
    return number(value) if isinstance(value, float) else text_of(value)


class StudyView(FollowedStudy):
    """The pictures and texts of a study; `Study` has the rest."""

    _trust: bool
    _shown: Any = None
    """Its live view; None: no notebook has shown it yet."""

    def charts(self, what: str | None = None) -> list[Chart]:
        """The charts of `plot` and `figure` as data.

        what: "cost" (the best value so far, by what it cost), "slices" (the value over each
        dimension of the space), "importance" (what explains the differences), "curves" (the metric
        of each trial over its updates); None: all.
        """
        if what is not None and what not in PLOTS:
            raise SettingsError(
                f"study.plot({shown(what)}): give one of {', '.join(map(repr, PLOTS))}."
            )
        data = study_data(self.record, curves=what in (None, "curves"))
        plots: dict[str, Callable[[], list[Chart]]] = {
            "cost": data.cost,
            "slices": data.slices,
            "importance": data.importances,
            "curves": data.curves,
        }
        charts = data.charts() if what is None else plots[what]()
        if not charts and what == "importance":
            raise ValueError("study.plot('importance'): it needs nine trials with a value.")
        if not charts:
            argument = "" if what is None else repr(what)
            raise ValueError(f"study.plot({argument}): no trial has a value yet.")
        return charts

    def plot(self, what: str | None = None, ax: Axes | None = None) -> Picture | Axes:
        """Draw the study with matplotlib: all charts, or only `what` (see `charts`). With `ax`, the
        first chart is drawn there, and `ax` is returned. ValueError: there is nothing to draw yet.
        """
        from workbench.plots.drawing import matplotlib

        charts = self.charts(what)
        return matplotlib.figure(charts) if ax is None else matplotlib.draw(charts[0], ax)

    def figure(self, what: str | None = None) -> Interactive:
        """The charts as an interactive plotly figure; `.save("study.html")` writes it."""
        from workbench.plots.drawing import plotly

        return plotly.figure(self.charts(what))

    def optuna(self) -> optuna.Study:
        """Its trials as an Optuna study in memory, for Optuna's plots, importances and dashboard.

        A trial that was halted before its end is "pruned", one that cannot be trained has failed.
        ImportError: Optuna is not installed.
        """
        return to_optuna(self.record)

    def export(self, path: str | Path, trial: int | None = None, **how: Any) -> Path:
        """Write a script that repeats the whole fit of a trial (None: of the best one). A path that
        ends in .html gets the study as one page instead, with the plots and the table of its view,
        for a browser without a server.

        how: the other arguments of `bench.export`. It needs no bench: the study has kept its code,
        which runs here. PermissionError: somebody else has made the study; open it with trust=True.
        """
        record = self.record
        file = Path(path).expanduser()
        if file.suffix.lower() in PAGES:
            if trial is not None or how:
                raise ExportError(
                    f"{file.name} is a page of the whole study, and not a script: give the path"
                    " alone."
                )
            return self._write_page(file)
        chosen = (
            record.best if trial is None else record.trial(self._trial(trial, "export(…, trial="))
        )
        end = None if chosen is None else chosen.end(record.last_rung)
        if chosen is None or end is None or end.status != "completed":
            which = "no trial has" if trial is None else f"trial {trial} does not have"
            raise ExportError(
                f"{self.path.name}: a script repeats a whole fit, which {which} yet. Wait for it,"
                " or export another trial."
            )
        start = open_start(self.path, trust=self._trust)
        values, _ = start.recipe.split(chosen.values)
        with (
            start.restored(),
            contextlib.closing(
                bench_of(start, self.path.parents[1], values, record.head.seed)
            ) as bench,
        ):
            return bench.export(path, end.run, **how)

    def _write_page(self, file: Path) -> Path:
        """Write the view of the study, with its table of trials."""
        from workbench.ui.page import write_study

        return write_study(file, self, self._table(_PAGE_ROWS))

    # -- shown by a notebook

    def _table(self, most: int = _ROWS) -> list[list[str]]:
        """The trials as texts, the best value first, `most` of them; the first row is the head."""
        record = self.record
        longest = {
            trial.number: max((p.rung for p in trial.pieces if p.end is not None), default=-1)
            for trial in record.trials
        }
        ordered = sorted(
            record.trials,
            key=lambda trial: (
                -longest[trial.number],
                record.score_at(trial, max(longest[trial.number], 0)),
                trial.number,
            ),
        )
        names = record.names
        rows = [["trial", "from", *names, "length", record.head.monitor, "status", "run"]]
        lives = self._has_worker(record)
        for trial in ordered[:most]:
            rung = longest[trial.number]
            piece = trial.piece(rung) if rung >= 0 else None
            end = None if piece is None else piece.end
            values = record.values_of(trial, end)
            status = trial.pieces[-1].status(lives) if trial.pieces else "waits"
            rows.append(
                [
                    str(trial.number),
                    trial.source,
                    *(text_of(values[n]) if n in values else "" for n in names),
                    fit_length(record.head.rungs[rung]) if rung >= 0 else "",
                    "" if end is None or end.value is None else number(end.value),
                    status if end is None else end.status,
                    "" if end is None else end.run,
                ]
            )
        return rows

    def _left_out(self) -> str:
        more = len(self.record.trials) - _ROWS
        return f"… and {more} more: study.table() has all." if more > 0 else ""

    def __repr__(self) -> str:
        rows = [self.headline, *(f"{text}  {code}".rstrip() for text, code in self.words())]
        table = self._table()
        if len(table) > 1:
            rows += ["", text_table(table), self._left_out()]
        return "\n".join(rows).rstrip()

    def _repr_html_(self) -> str:
        """The study as a page: its state, the verdict with what to do next, charts, a table."""
        words = "".join(
            f"<li>{html.escape(text)}{f' <code>{html.escape(code)}</code>' if code else ''}</li>"
            for text, code in self.words()
        )
        table = self._table()
        parts = [f"<p><b>{html.escape(self.headline)}</b></p>"]
        if words:
            parts.append(f"<ul>{words}</ul>")
        trials = html_table("trials", table) if len(table) > 1 else ""
        parts.append(with_picture(self._png(), f"{trials}<p>{self._left_out()}</p>"))
        return f"<div>{''.join(parts)}</div>"

    def _png(self) -> bytes:
        """The charts as a picture; b"": there is nothing to draw yet."""
        from workbench.plots.drawing import matplotlib

        data = study_data(self.record)
        columns = [[*data.cost(), *data.importances(), *data.curves()], data.slices()]
        if not any(columns):
            return b""
        return matplotlib.small_png(matplotlib.overview(columns))

    def _ipython_display_(self) -> None:
        """Show it live in a notebook, with a page that stays in its file; elsewhere that page."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        if getattr(get_ipython(), "kernel", None) is None:
            display(self._bundle(), raw=True)
        else:
            self._panel().show()

    def _display_(self) -> Any:
        """Called by marimo, and not by Jupyter, to show it."""
        return self._panel().canvas

    def _panel(self) -> Any:
        from workbench.ui.study_panel import StudyPanel

        if self._shown is None or self._shown.closed:
            self._shown = StudyPanel(self, self._bundle, self._state)
        return self._shown

    def _bundle(self) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}

    def _state(self) -> object:
        """Something that differs when the view does."""
        record = self.record
        return (
            self.status,
            len(record.changes),
            [(piece.state, piece.end) for trial in record.trials for piece in trial.pieces],
        )
