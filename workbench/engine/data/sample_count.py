"""Warns once if the user's own data have another number of samples or batches than is counted."""

from __future__ import annotations

from typing import Any, Literal

from workbench.engine.session import Session
from workbench.events import Message
from workbench.task.batch import miscounted, sample_count
from workbench.techniques.limits import is_whole


def note_count(
    session: Session, name: Literal["train", "val", "test"], batch: Any, weight: float
) -> None:
    """Check the first batch of its kind whose weight is the number of samples counted in its
    tensors.
    """
    if name in session.state.counts_seen:
        return
    session.state.counts_seen.add(name)
    asked = (
        session.task.drawn is None
        and "told" not in session.state.counts_seen
        and weight == sample_count(batch)
    )
    why = miscounted(batch) if asked else None
    if why is not None:
        session.state.counts_seen.add("told")
        remedy = (
            'return {"loss": …, "weight": n} from the loss or the step, or give the samples'
            " themselves (a Dataset or a list), which are counted as they are drawn"
        )
        session.notes.append(
            Message(
                f"a batch of {name} {why}: if it holds another number, {remedy}.",
                "warning",
                session.state.step,
            )
        )


def note_more_batches(session: Session) -> None:
    """After an update with batches beyond the planned length of an epoch: say what was planned
    by it.
    """
    planned = session.data.batches_of_pass
    if planned is None or session.state.batch_idx <= planned:
        return
    if "length" in session.state.counts_seen:
        return
    session.state.counts_seen.add("length")
    schedules = [schedule.scheduler for opt in session.optimizers for schedule in opt.schedules]
    named = ", ".join(type(scheduler).__name__ for scheduler in schedules)
    if session.settings.lr_schedule != "constant":
        named = f"lr_schedule={session.settings.lr_schedule!r}"
    which = f", and {named} was made for these" if named else ""
    text = (
        f"the training data give more than the {planned} batches that their length (len) says in"
        f" epoch {session.state.epoch}: the run is planned for {session.total_steps.planned()}"
        f" updates{which}. Let len say how many there are, give max_steps, or set"
        f" limit_train_batches={planned}."
    )
    session.notes.append(Message(text, "warning", session.state.step))


def note_length(session: Session) -> None:
    """At the end of an epoch: compare the number of batches with the planned one."""
    data, settings = session.data, session.settings
    planned, length = data.batches, data.length
    if planned is None or not data.begun or "length" in session.state.counts_seen:
        return
    spare = 1 if session.ranks.several else 0  # some ranks may lack a batch in the last round
    train = session.task.train
    if length is not None and train is not None and train.read_by_rank:
        planned = min(planned, length)  # other ranks may have more
    whole = is_whole(settings.limit_train_batches) and not settings.overfit_batches
    text, epoch = "", session.state.epoch
    if data.batches_read + spare < planned:
        text = (
            f"the training data gave {data.batches_read} batches in epoch {epoch}, and their length"
            f" (len) says {planned}: schedules are planned for {planned} and will not reach their"
            f" end. Let len say how many there are, or set limit_train_batches={data.batches_read}."
        )
    elif whole and length is not None and length > planned:
        text = (
            f"the training data have {length} batches in epoch {epoch}, and had {planned} when the"
            f" run began: the others are left out, since schedules are planned for {planned}. Give"
            " data of the same length in every epoch, or make a fit of each stage."
        )
    if text:
        session.state.counts_seen.add("length")
        session.notes.append(Message(text, "warning", session.state.step))
