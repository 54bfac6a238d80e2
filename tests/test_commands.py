"""The mailbox: any thread puts, one takes, in order."""

from __future__ import annotations

import pickle
import threading

import pytest

from workbench.commands import Change, Command, Mailbox, Pause, Resume, Stop, Validate


def test_commands_come_in_order_and_then_none() -> None:
    box = Mailbox()
    assert not box
    assert box.take() is None
    sent: list[Command] = [Pause(), Resume(), Change({"lr": 0.1}), Stop()]
    for command in sent:
        box.put(command)
    assert box
    assert [box.take() for _ in sent] == sent
    assert not box


def test_a_check_that_waits_is_not_asked_for_twice() -> None:
    box = Mailbox()
    for command in (Validate(), Pause(), Validate(), Pause()):
        box.put(command)
    assert [box.take() for _ in range(4)] == [Validate(), Pause(), Pause(), None]
    box.put(Validate())
    assert box.take() == Validate()


def test_waiting_ends_when_a_command_arrives() -> None:
    box = Mailbox()
    threading.Timer(0.05, box.put, [Stop()]).start()
    assert box.wait(3600)  # longer than any test may take
    assert box.take() == Stop()


def test_waiting_ends_without_one() -> None:
    assert not Mailbox().wait(0.01)


def test_nothing_is_lost_between_threads() -> None:
    box = Mailbox()
    writers = [
        threading.Thread(
            target=lambda i=i: [box.put(Change({"lr": float(i * 1000 + j)})) for j in range(200)]
        )
        for i in range(4)
    ]
    for thread in writers:
        thread.start()
    seen: list[float] = []
    while len(seen) < 800 and box.wait(60):
        command = box.take()
        assert isinstance(command, Change)
        seen.append(command.values["lr"] or 0.0)
    for thread in writers:
        thread.join()
    assert len(set(seen)) == 800
    for i in range(4):
        mine = [v for v in seen if i * 1000 <= v < (i + 1) * 1000]
        assert mine == sorted(mine)


@pytest.mark.parametrize(
    "command", [Pause(), Resume(), Stop(), Change({"gradient_clip_val": None})]
)
def test_commands_are_plain_frozen_data(command: Command) -> None:
    assert pickle.loads(pickle.dumps(command)) == command
    with pytest.raises((AttributeError, TypeError)):
        command.values = {}  # type: ignore[union-attr,misc]
