"""The table of the spikes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.events import Spiked
from workbench.runs.tables.render import data_frame, html_table, text_table
from workbench.units import number

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN = 8
"""How many indices of samples a row shows."""


class Spikes(tuple[Spiked, ...]):
    """The spikes of a run (`run.spikes`), in order; `spikes[0].samples` are the indices of the
    first one's samples.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return text_table(self._table()) if self else "no spikes"

    def _repr_html_(self) -> str:
        return html_table("Spikes", self._table()) if self else "no spikes"

    def to_pandas(self) -> DataFrame:
        """Return the table as a pandas data frame with a row for each spike."""
        names = [name for name in Spiked.__dataclass_fields__ if name != "step"]
        columns = {name: [getattr(spike, name) for spike in self] for name in names}
        return data_frame({"update": [spike.step for spike in self], **columns})

    def _table(self) -> list[list[str]]:
        head = ["update", "loss", "expected", "grad norm", "expected", "done", "samples"]
        return [head, *map(_row, self)]


def _row(spike: Spiked) -> list[str]:
    norms = [
        "" if norm is None else number(norm) for norm in (spike.grad_norm, spike.expected_norm)
    ]
    done = {"report": "reported", "skip": "left out"}.get(
        spike.action, f"back to update {spike.back_to}"
    )
    more = ", …" if len(spike.samples) > SHOWN else ""
    samples = ", ".join(map(str, spike.samples[:SHOWN])) + more
    if spike.are_batches:
        samples = f"batch {samples}"
    return [str(spike.step), number(spike.loss), number(spike.expected), *norms, done, samples]
