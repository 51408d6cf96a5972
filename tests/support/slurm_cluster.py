"""
A Slurm cluster on this machine, of the programs that distributions ship: munged, slurmctld, and a slurmd for each node.

Everything that it writes is in a folder of its own. It takes no rights, no cgroups and no accounting.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from spotrun import proc
from spotrun.clouds.local import processes
from spotrun.proc import ProcessMark
from tests.support.eventually import eventually
from tests.support.object_stores import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
ENDS_WITHIN_S = 20.0
PARTITIONS = (
    "cheap Nodes=n[1-{last}] PriorityTier=1 PreemptMode=CANCEL GraceTime={grace_s}",
    "sure Nodes=n[1-{last}] PriorityTier=10 PreemptMode=OFF",
)
_SETTINGS = """
ClusterName=little
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
FirstJobId={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/controller.log
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=2
SlurmdTimeout={silent_s}
BatchStartTimeout=120
MinJobAge=3600
"""


def missing() -> list[str]:
    """The programs that this machine lacks; distributions have them as slurm-wlm and munge."""
    found = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=found) is None]


NEEDS_SLURM = pytest.mark.skipif(
    bool(missing()), reason=f"apt install slurm-wlm munge: there is no {', '.join(missing())}"
)


class Cluster:
    """
    Nodes n1, n2, … with a processor each, and `partitions`, whose text is that of slurm.conf. Two clusters that there
    are at one time number their jobs differently: agents on one machine tell their trainers apart by that.
    """

    def __init__(self, folder: Path, nodes: int, partitions: Sequence[str], grace_s: int, silent_s: int) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(nodes + 1)
        self._place = "127.0.0.1", ports[0]
        host, user = socket.gethostname().partition(".")[0], getpass.getuser()
        text = _SETTINGS.format(host=host, user=user, folder=folder, ports=ports, silent_s=silent_s)
        for at, (name, port) in enumerate(zip(self._nodes, ports[1:], strict=True), 1):
            text += f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.1.{at} Port={port} CPUs=1 RealMemory=1000\n"
        for partition in partitions:
            text += f"PartitionName={partition.format(last=nodes, grace_s=grace_s)} State=UP\n"
        self.conf.write_text(text)
        (folder / "state").mkdir()

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = {name: f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "log", "seed")}
        self._run("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                  *files.values())  # fmt: skip
        eventually(lambda: (self.folder / "munge.socket").exists())
        self.start_controller()
        self._start_nodes()

    def start_controller(self) -> None:
        """One that knows of no job. It listens: whoever asks one that does not tries again a second later."""
        self._run("slurmctld", "-D", "-c")
        eventually(self._listens)

    def _listens(self) -> bool:
        with contextlib.suppress(ConnectionError), socket.create_connection(self._place):
            return True
        return False

    def _start_nodes(self) -> None:
        for name in self._nodes:
            self.start_node(name)
        self.await_nodes()

    def start_node(self, name: str) -> None:
        self._run("slurmd", "-D", "-N", name, known_as=name)

    def await_nodes(self) -> None:
        eventually(lambda: set(self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()) == {"idle"})

    def forget_jobs(self) -> None:
        """As after a long time: the queue is empty. Nodes that begin anew are known at once, others after seconds."""
        self.ask("scancel", "--me")
        eventually(lambda: not self.ask("squeue", "--noheader", "--format=%i").split())
        for name in [*self._daemons.keys() & {*self._nodes}, "slurmctld"]:
            self._end(name)
        self.start_controller()
        self._start_nodes()

    def break_node(self, name: str) -> None:
        """
        It is switched off: its daemon and all that runs below its jobs end, before any of them can say a word. So all
        are stopped first, until there are no more, and then killed.
        """
        self._end(name, signal.SIGKILL)
        jobs = self.ask("squeue", "--noheader", f"--nodelist={name}", "--format=%i").split()
        stopped: set[ProcessMark] = set()
        while found := self._on_node(name, jobs) - stopped:
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGSTOP)
            stopped |= found
        processes.kill_all(lambda: filter(processes.is_alive, stopped))

    def lost_at(self, name: str) -> datetime:
        """When the controller took a node from the job that had it, by its own log."""
        (line,) = [
            each
            for each in (self.folder / "controller.log").read_text().splitlines()
            if f"Removing failed node {name} from JobId" in each
        ]
        return datetime.fromisoformat(line[1:].partition("]")[0]).astimezone(UTC)

    def _on_node(self, name: str, jobs: Sequence[str]) -> set[ProcessMark]:
        """What runs there. An agent and its training carry no variable of Slurm's, and are below what keeps a step."""
        own = {*processes.carrying("SLURM_CONF", str(self.conf))}
        here = own & {*processes.carrying("SLURMD_NODENAME", name)}
        keepers = {mark for job in jobs for mark in _keepers(job) if here & {*processes.descendants(mark.pid)}}
        above = here | keepers
        return above | {below for each in above for below in processes.descendants(each.pid)}

    def ask(self, *words: str) -> str:
        """What one of Slurm's programs prints; "" if it fails, as a controller that begins has no answer yet."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout

    def close(self) -> None:
        self.ask("scancel", "--me")
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.ask("squeue", "--noheader", "--format=%i").split(), within_s=10)
        for name in reversed(list(self._daemons)):
            self._end(name)
        processes.kill_all(partial(processes.carrying, "SLURM_CONF", str(self.conf)))

    def _run(self, program: str, *arguments: str, known_as: str = "") -> None:
        name = known_as or program
        environment = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        with open(self.folder / f"{name}.log", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _end(self, name: str, by: signal.Signals = signal.SIGTERM) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.send_signal(by)
        try:
            daemon.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


@contextlib.contextmanager
def cluster(
    nodes: int = 3, partitions: Sequence[str] = PARTITIONS, grace_s: int = 12, silent_s: int = 300
) -> Iterator[Cluster]:
    """
    One that lives as long as this. A node that is silent for `silent_s` is down; on a busy machine it may be so.

    A socket's path may have no more than a hundred letters, so the folder is in /tmp.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder), nodes, partitions, grace_s, silent_s)
        try:
            made.start()
            yield made
        finally:
            made.close()


def _keepers(job: str) -> Iterator[ProcessMark]:
    """The processes that keep the steps of a job, of any cluster: `slurmstepd: [3.batch]`."""
    for stat in proc.all_stats():
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{stat.mark.pid}/cmdline").read_bytes()
            if title.startswith(f"slurmstepd: [{job}.".encode()) and not stat.ended:
                yield stat.mark
