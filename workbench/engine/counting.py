"""Tells once that a batch of the user's own may count as another number of samples than it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from workbench.events import Message
from workbench.task.batch import miscounted, sample_count

if TYPE_CHECKING:
    from workbench.engine.session import Session


def note_count(session: Session, name: Literal["train", "val", "test"], batch: Any, weight: float) -> None:
    """Look at the first batch of its kind that weighs as many samples as were counted in its tensors."""
    if name in session.counts_seen:
        return
    session.counts_seen.add(name)
    asked = session.task.drawn is None and "told" not in session.counts_seen and weight == sample_count(batch)
    why = miscounted(batch) if asked else None
    if why is not None:
        session.counts_seen.add("told")
        remedy = (
            'return {"loss": …, "weight": n} from the loss or the step, or give the samples themselves (a Dataset or a list), which '
            "are counted as they are drawn"
        )
        session.notes.append(Message(f"a batch of {name} {why}: if it holds another number, {remedy}.", "warning", session.step))
