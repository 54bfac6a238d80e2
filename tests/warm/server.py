"""The process behind tests/warm: it imports what it is told, and forks once for each script.

A script is run as `python -c CODE …`, `python -m MODULE …` or `python FILE …` would run it: in a `__main__` of its own, with
its own folder, environment and first entry of sys.path, in a session of its own, to the interpreter's own end.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types

LONGEST = 1 << 20
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1


def serve(listener, folder, run):
    """Forks for each job that comes, and says how each ended; returns a job in its own process, and never here.

    Each process that connects to `listener` sends one job. When nobody is left to be told of its end, the job ends.
    """
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running = {}
    with selectors.DefaultSelector() as select:
        for each in (listener, woken, run):
            select.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in select.select():
                if key.fileobj is run:  # the tests are over
                    shutil.rmtree(folder, ignore_errors=True)
                    os._exit(0)
                elif key.fileobj is woken:
                    woken.recv(4096)
                    reap(running, select)
                elif key.fileobj is not listener:
                    if running.get(key.data) is key.fileobj:  # not reaped: its number is still its own
                        select.unregister(key.fileobj)
                        end_all_of(key.data)
                elif asked := accept(listener):
                    job, (status, *others) = asked
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        os.close(run)
                        for end in (listener, woken, wake, *running.values()):
                            end.close()
                        return job, [status, *others]
                    for fd in others:
                        os.close(fd)
                    running[pid] = socket.socket(fileno=status)
                    tell(running[pid], pid)
                    select.register(running[pid], selectors.EVENT_READ, pid)


def accept(listener):
    """A job and its files; None: whoever asked has gone, or looks whether this process is there."""
    with listener.accept()[0] as asking:
        message, fds, _, _ = socket.recv_fds(asking, LONGEST, 4)
    return (json.loads(message), fds) if message else None


def tell(asked, number):
    with contextlib.suppress(BrokenPipeError):  # whoever asked was killed
        asked.send(f"{number}\n".encode())


def end_all_of(pid):
    """As Jupyter ends a kernel: its whole process group."""
    with contextlib.suppress(ProcessLookupError):  # it may not have come to have a group of its own
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def reap(running, select):
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as asked:
            if asked in select.get_map():
                select.unregister(asked)
            tell(asked, os.waitstatus_to_exitcode(status))


def become(job, fds):
    """This process is one that has just been started for this job; its code, compiled."""
    status, out, err, *network = fds
    os.close(status)
    for fd in network:
        enter(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background, without it
    os.setsid()
    for fd, number in ((out, 1), (err, 2)):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.executable = os.environ.get("PYTHON_EXEC", sys.executable)  # what it starts itself is forked, too, where tests ask for that
    os.chdir(job["folder"])
    if os.environ.pop("WORKBENCH_TEST_RANKS", None):
        stand_by()
    if job["argv"][0] == "-u":
        del job["argv"][0]
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True) for number in (1, 2))
    first, *rest = job["argv"]
    if first == "-m":
        module, *rest = rest
        sys.argv = ["-m", *rest]
        sys.path.insert(0, os.getcwd())
        return compile(f"import runpy; runpy._run_module_as_main({module!r})", "<string>", "exec")  # as Python does it
    if first == "-c":
        code, *rest = rest
        sys.argv = ["-c", *rest]
        sys.path.insert(0, "")
        return compile(code, "<string>", "exec", dont_inherit=True)
    sys.argv = [first, *rest]
    sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
    with open(first, encoding="utf-8") as file:
        return compile(file.read(), first, "exec", dont_inherit=True)


class Forked:
    """Stands for the `subprocess.Popen` of a process that was forked from this one."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None
        self._looking = threading.Lock()

    def poll(self):
        with self._looking:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("the fork server", timeout)
            time.sleep(0.005)
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def stand_by():
    """Fork what will be this process's fork server, with all that it imports: its first one is not started as Python."""
    from workbench.launch.process import fork_client

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        here.close()
        try:
            be_fork_server(there, parent)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # nothing may get back to what this process was forked for
    there.close()
    waiting = [here]

    def start(argv, *, stdout, pass_fds, env, **more):
        if not waiting:
            return subprocess.Popen(argv, stdout=stdout, pass_fds=pass_fds, env=env, **more)
        with waiting.pop() as there:
            socket.send_fds(there, [json.dumps({"argv": argv, "environment": env}).encode()], [stdout.fileno(), *pass_fds])
        return Forked(pid)

    fork_client.subprocess = types.SimpleNamespace(**vars(subprocess) | {"Popen": start})


def be_fork_server(there, parent):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt goes to the whole group of a kernel
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    message, fds, _, _ = socket.recv_fds(there, LONGEST, 2)
    if not message:
        os._exit(0)
    there.close()
    log, control = fds
    for number in (1, 2):
        os.dup2(log, number)
    job = json.loads(message)
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.argv = job["argv"][3:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    from workbench.launch.process import fork_server

    temporary, *more = sys.argv[3:]
    fork_server.main(control, parent, temporary, more)


def enter(network):
    """Into the network namespace of whoever asked."""
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino and ctypes.CDLL(None, use_errno=True).setns(network, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(network)


def new_main(job):
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=None)
    if job["argv"][0] not in ("-c", "-m"):
        main.__file__ = job["argv"][0]
    sys.modules["__main__"] = main
    return main.__dict__


def run_and_leave(code, names):
    """Without the interpreter's own end, which takes a quarter of a second where torch is loaded."""
    left = 0
    try:
        exec(code, names)
    except SystemExit as end:
        left = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        left = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(left)


if __name__ == "__main__":
    del sys.path[0]  # tests/lightning is not lightning. With -P, forked kernels would not find modules beside their notebook
    listener, given = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    run = os.pidfd_open(given["run"])
    for module in given["modules"]:
        importlib.import_module(module)
    sys.modules.update(dict.fromkeys(given["blocked"]))
    gc.collect()
    gc.freeze()  # what is imported is not looked through again in every process
    job, fds = serve(listener, given["folder"], run)
    code, names = become(job, fds), new_main(job)
    if job["leave"]:
        run_and_leave(code, names)
    exec(code, names)
