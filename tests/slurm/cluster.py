"""Starts a SLURM of one node on this machine, for tests: `python -m tests.slurm.cluster FOLDER` keeps it until Ctrl-C.

Debian: apt-get install slurm-wlm. It needs no rights and no munge: its daemons and jobs run as this user, on 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2
"""


def installed() -> bool:
    """Whether the programs of SLURM are on this machine."""
    return all(shutil.which(name, path=_PATH) for name in ("slurmctld", "slurmd", "sbatch", "srun"))


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Context manager in which a SLURM runs; yields the variables with which its commands reach it."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as one, socket.socket() as two:
        ports = []
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    conf = folder / "slurm.conf"
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    conf.write_text(
        _CONF.format(host=host, user=user, ports=ports, folder=folder, cpus=os.cpu_count())
    )
    variables = {"SLURM_CONF": str(conf)}
    environment = os.environ | variables
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            daemon = subprocess.Popen(
                [str(shutil.which(command[0], path=_PATH)), *command[1:]],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            daemons.append(daemon)
        until = time.monotonic() + 120
        while True:
            state = subprocess.run(
                ["sinfo", "-h", "-o", "%T"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            ).stdout
            if "idle" in state:
                break
            if time.monotonic() > until:
                logs = [path.read_text()[-1000:] for path in folder.glob("*.log")]
                raise RuntimeError("SLURM does not start:\n" + "\n".join(logs))
            time.sleep(0.1)
        yield variables
        subprocess.run(["scancel", "-u", user], env=environment, check=False)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)


if __name__ == "__main__":
    with slurm(Path(sys.argv[1]).absolute()) as variables:
        print(*(f"export {name}={value}" for name, value in variables.items()), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(86400)
