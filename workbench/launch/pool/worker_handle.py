"""Defines the handle with which the owner of a pool controls one rank."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.launch.pool.messages import RankConfig
from workbench.launch.process.channel import Channel, Received, close_fds
from workbench.launch.process.child_handle import Child, Hear, Server
from workbench.launch.process.output_lines import OutputLines


class WorkerHandle(Child):
    """A rank's process, with its channel, its output and its stacks."""

    def __init__(self, place: RankConfig, server: Server) -> None:
        self.lines = OutputLines()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the rank
        super().__init__(lambda name, data: self.lines.feed(name, data))
        self.rank = place.rank
        self.channel = Channel(self._end)
        self.files: dict[str, int] = {}
        """The user's modules that it has imported, with their times of change."""
        if self.begin(server, "rank", [self._stacks.fileno()]):
            self.send(place)

    def is_usable(self) -> bool:
        """Whether it can take a job: its process lives, and the user's modules have not changed."""
        self.look()
        # messages of the job before, which no one reads any more
        for received in self.channel.take():
            close_fds(received.fds)
        return (
            not self.over
            and not self.channel.ended
            and all(map(_unchanged, self.files, self.files.values()))
        )

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Send a message if the process still lives; its status socket reports its end."""
        try:
            self.channel.send(message, files)
        except OSError:
            self.channel.ended = True

    def listen(self, also: Callable[[str], None]) -> None:
        """Show the rank's output from now on, and pass each line to `also`; called when a job
        begins.
        """
        self.lines = OutputLines(prefix="" if self.rank == 0 else f"[rank {self.rank}] ", also=also)

    def all_sources(
        self, hear: Callable[[WorkerHandle, Received], None]
    ) -> Iterator[tuple[int, Hear]]:
        """File descriptors to wait for, each with the function that reads it; `hear` gets the
        messages.
        """

        def take() -> bool:
            for received in self.channel.take():
                hear(self, received)
            return not self.channel.ended

        yield self.channel.socket.fileno(), take
        yield from self.sources()

    def ask_for_stacks(self) -> None:
        """Let it write the stacks of all its threads, even if it hangs in a C call."""
        if self.pid is not None and not self.over:
            # it has just ended; its status socket reports that
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def stacks(self) -> str:
        """The stacks that it has written since then: each thread, the innermost frame first."""
        return os.pread(self._stacks.fileno(), 1 << 20, 0).decode(errors="replace")

    @property
    def state(self) -> str:
        """The letter of the process state in /proc: "T" where it is stopped."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][:1]
        except OSError:
            return ""

    def close(self) -> None:
        super().close()
        self.channel.close()
        self._stacks.close()


def _unchanged(file: str, written: int) -> bool:
    try:
        return os.stat(file).st_mtime_ns == written
    except OSError:
        return False
