"""The forking process of tests/warm: it imports the modules that it is given, and forks once for each script.

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
import select
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


class Server:
    """Forks a process for each job, tells whoever asked how it ended, and ends it when nobody is left to be told.

    Each process that connects to `listener` sends one job. When `controller`, which runs the tests, has ended or a SIGTERM comes,
    this process ends with all that it has forked.
    """

    def __init__(self, listener, run, controller):
        self._listener, self._run, self._controller = listener, run, os.pidfd_open(controller)
        self._running = {}
        """The socket on which each process's end is awaited, by the process's number."""
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self._select = selectors.DefaultSelector()
        self._select.register(listener, selectors.EVENT_READ, self._accept)
        self._select.register(self._woken, selectors.EVENT_READ, self._hear_signals)
        self._select.register(self._controller, selectors.EVENT_READ, self._leave)

    def next_job(self):
        """A job and its files, in the process that was forked for it. In the server itself this never returns."""
        while True:
            for key, _ in self._select.select():
                # what came before may have unregistered it
                if self._select.get_map().get(key.fd) is key and (job := key.data()):
                    return job

    def _accept(self):
        try:
            connection = self._listener.accept()[0]
        except OSError:  # no file descriptor is free: it is accepted when a process has ended
            return
        self._select.register(connection, selectors.EVENT_READ, lambda: self._read_job(connection))

    def _read_job(self, connection):
        self._select.unregister(connection)
        with connection:
            try:
                message, fds, _, _ = socket.recv_fds(connection, LONGEST, 4)
            except OSError:
                return None
        if len(fds) >= 3:
            return self._fork(json.loads(message), fds)
        # it only looked whether this process runs, or no file descriptors were free for its files
        for fd in fds:
            os.close(fd)
        return None

    def _fork(self, job, fds):
        try:
            pid = os.fork()
        except OSError as error:
            pid = None
            os.write(fds[0], f"{error}\n".encode())
        if pid == 0:
            self._forget()
            return job, fds
        for fd in fds[1:]:
            os.close(fd)
        status = socket.socket(fileno=fds[0])
        if pid is None:
            status.close()
            return None
        self._running[pid] = status
        tell(status, pid)
        self._select.register(status, selectors.EVENT_READ, lambda: self._end(pid))
        return None

    def _forget(self):
        """In a forked process: nothing of the server is left."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for key in list(self._select.get_map().values()):
            os.close(key.fd) if key.fileobj is self._controller else key.fileobj.close()
        self._select.close()
        self._wake.close()

    def _hear_signals(self):
        if signal.SIGTERM in self._woken.recv(4096):
            self._leave()
        self._reap()

    def _reap(self):
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._running.pop(pid) as asker:
                if asker in self._select.get_map():
                    self._select.unregister(asker)
                tell(asker, os.waitstatus_to_exitcode(status))

    def _end(self, pid):
        """End a process, because whoever asked for it has gone."""
        self._select.unregister(self._running[pid])
        kill_group(pid)

    def _leave(self):
        for pid in self._running:  # none is reaped: their numbers are still their own
            kill_group(pid)
        for pid in self._running:
            os.waitpid(pid, 0)
        if select.select([self._controller], [], [], 0)[0]:
            shutil.rmtree(self._run, ignore_errors=True)  # the tests may have been killed
        os._exit(0)


def tell(status, number):
    with contextlib.suppress(OSError):  # whoever asked was killed
        status.send(f"{number}\n".encode())


def kill_group(pid):
    """As Jupyter ends a kernel: its whole process group."""
    with contextlib.suppress(ProcessLookupError):  # it may not have a group of its own yet
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def become(job, fds):
    """This process is one that has just been started for this job; its code, compiled."""
    status, out, err, *network = fds
    os.close(status)
    for fd in network:
        enter(fd)
    # also where the tests run in the background, without it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for fd, number in ((out, 1), (err, 2)):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(job["environment"])
    # what it starts itself is forked, too, where tests ask for that
    sys.executable = os.environ.get("PYTHON_EXEC", sys.executable)
    os.chdir(job["folder"])
    if os.environ.pop("WORKBENCH_TEST_FORKED_SERVER", None):
        fork_a_fork_server()
    if job["argv"][0] == "-u":
        del job["argv"][0]
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True)
            for number in (1, 2)
        )
    return compiled(*job["argv"])


def compiled(first, *rest):
    """The code that `python first rest…` runs, with its arguments in sys.argv and its folder in sys.path."""
    if first == "-m":
        module, *rest = rest
        sys.argv = ["-m", *rest]
        sys.path.insert(0, os.getcwd())
        # as Python does it
        return compile(f"import runpy; runpy._run_module_as_main({module!r})", "<string>", "exec")
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
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # reaped elsewhere: Popen takes that for 0, too
                    pid, status = self.pid, 0
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


def fork_a_fork_server():
    """Fork what will be this process's first fork server, with all that it imports; a second one is started as Python."""
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
    unused = [here]

    def start(argv, *, stdout, pass_fds, env, process_group, **more):
        if not unused:
            return subprocess.Popen(
                argv, stdout=stdout, pass_fds=pass_fds, env=env, process_group=process_group, **more
            )
        assert argv[1] == "-P", "the forked one has no folder of the script in its sys.path"
        assert process_group == 0, "the forked one has a group of its own"
        with unused.pop() as request:
            socket.send_fds(
                request,
                [json.dumps({"arguments": argv[4:], "environment": env}).encode()],
                [stdout.fileno(), *pass_fds],
            )
        return Forked(pid)

    fork_client.subprocess = types.SimpleNamespace(**vars(subprocess) | {"Popen": start})


def be_fork_server(request, parent):
    """Wait until the parent asks for its fork server, and be it. How it takes interrupts is its own matter."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    message, fds, _, _ = socket.recv_fds(request, LONGEST, 2)
    if not message:
        os._exit(0)
    request.close()
    log, control = fds
    for number in (1, 2):
        os.dup2(log, number)
    job = json.loads(message)
    os.environ.clear()
    os.environ.update(job["environment"])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    from workbench.launch.process import fork_server

    sys.argv = [fork_server.__file__, *job["arguments"]]
    # the first two are numbers of the parent's: its socket's, which is another here, and its own
    _, _, temporary, *more = job["arguments"]
    fork_server.main(control, parent, temporary, more)


def enter(network):
    """Into the network namespace of whoever asked."""
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino and ctypes.CDLL(
        None, use_errno=True
    ).setns(network, CLONE_NEWNET):
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


def main(listener, given):
    # a ^C goes to all processes of a terminal; this one ends with the tests
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in given["modules"]:
        importlib.import_module(module)
    sys.modules.update(dict.fromkeys(given["blocked"]))
    gc.collect()
    gc.freeze()  # what is imported is not looked through again in every process
    importlib.import_module("tests.huge_pages")
    return Server(listener, given["run"], given["controller"]).next_job()


if __name__ == "__main__":
    # tests/lightning is not lightning. With -P, forked kernels would not find modules beside their
    # notebook
    del sys.path[0]
    job, fds = main(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
    code, names = become(job, fds), new_main(job)
    if job["leave"]:
        run_and_leave(code, names)
    exec(code, names)
