"""Warns once where data of the user's own hold another number of samples, or of batches, than they are counted as."""

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


def note_length(session: Session) -> None:
    """The training data have come to the end of an epoch: compare the batches they gave with those that were planned."""
    data, settings = session.data, session.settings
    planned, there = data.batches, data.length
    if planned is None or not data.begun or "length" in session.counts_seen:
        return
    spare = 1 if session.ranks.several else 0  # the last round may miss some ranks
    whole = settings.limit_train_batches == 1.0 and not settings.overfit_batches
    text, epoch = "", session.epoch
    if data.taken + spare < planned:
        text = (
            f"the training data gave {data.taken} batches in epoch {epoch}, and their length (len) says {planned}: schedules are planned "
            f"for {planned} and will not reach their end. Let len say how many there are, or set limit_train_batches={data.taken}."
        )
    elif whole and there is not None and there > planned:
        text = (
            f"the training data have {there} batches in epoch {epoch}, and had {planned} when the run began: the others are left out, "
            f"since schedules are planned for {planned}. Give data of the same length in every epoch, or make a fit of each stage."
        )
    if text:
        session.counts_seen.add("length")
        session.notes.append(Message(text, "warning", session.step))
