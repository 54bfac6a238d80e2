"""The pool: ranks that stay warm between the jobs of a kernel."""

from __future__ import annotations

from workbench.commands import Mailbox
from workbench.launch.assignments import Assignment, Done
from workbench.launch.protocol import Outlet


def carry(assignment: Assignment, accelerator: str, devices: tuple[int, ...], emit: Outlet, inbox: Mailbox) -> Done:
    raise NotImplementedError
