"""Stands for a Python that is forked (tests/warm): who starts, signals or ends this process means that one."""

import json
import os
import signal
import socket
import sys

NETWORK = "/proc/self/ns/net"


def main(address, *argv):
    told, status = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(address)
        job = {"argv": argv, "folder": os.getcwd(), "environment": dict(os.environ), "leave": False}
        files = [status.fileno(), 1, 2]
        if os.path.exists(NETWORK):
            files.append(os.open(NETWORK, os.O_RDONLY))
        with status:
            socket.send_fds(asking, [json.dumps(job).encode()], files)
        lines = told.makefile()
        pid = int(lines.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.killpg(pid, number))
        left = int(lines.readline())
    if left < 0:
        signal.signal(-left, signal.SIG_DFL)
        os.kill(os.getpid(), -left)
    sys.exit(left)


if __name__ == "__main__":
    main(*sys.argv[1:])
