"""Stands for a Python that is forked (tests/warm): who starts, signals or ends this process means that one."""

import json
import os
import signal
import socket
import sys

NETWORK = "/proc/self/ns/net"


def main(address, *argv):
    here, there = socket.socketpair()
    with there, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        job = {"argv": argv, "folder": os.getcwd(), "environment": dict(os.environ), "leave": False}
        files = [there.fileno(), 1, 2]
        if os.path.exists(NETWORK):
            files.append(os.open(NETWORK, os.O_RDONLY))
        socket.send_fds(connection, [json.dumps(job).encode()], files)
    lines = here.makefile()
    first = lines.readline().strip()
    if not first.isdigit():
        sys.exit(f"no process was forked for {argv}: {first or 'the forking process has ended'}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: os.killpg(int(first), number))
    last = lines.readline()
    # the forking process has ended, and all of its own with it
    code = int(last) if last else -signal.SIGKILL
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
