"""
Starts the process of a trainer in a separate session, reads the trainer's messages, and ends the trainer and all
processes that it has started.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from spotrun import proc
from spotrun.agent.agent_context import AgentContext, Assignment
from spotrun.agent.container import python_in, variables
from spotrun.agent.gang.rendezvous import alone, listens_on
from spotrun.agent.inbox import Exited, Inbox, TrainerMessage
from spotrun.agent.logs.secret_values import kept_from_setup
from spotrun.agent.machine import environment, process_groups, seeding
from spotrun.agent.machine.sigterm import Termination
from spotrun.agent.processes.trainer_socket import Entrance
from spotrun.agent.snapshots.frozen import Descriptors
from spotrun.autoload.late_variables import WAITING
from spotrun.clock import Clock
from spotrun.container.engine import Container
from spotrun.folder import start_file
from spotrun.spec.image import CREDENTIALS
from spotrun.spec.model import STATE_DIR as STATE_DIR_OF_OURS
from spotrun.spec.model import RunSpec
from spotrun.trainer_link import (
    AGENT,
    RANKS_SECRET,
    TAKEN,
    VIRTUAL_RANKS,
    Hello,
    LinkClosed,
    Message,
    TrainerLink,
    Welcome,
)

READ_REST_WITHIN_S = 5.0
"""Maximum seconds of system time for reading the last messages of a trainer that has ended."""
STACKS_WITHIN_S = 1.0
"""Maximum seconds of system time for a rank to print its stacks."""
LOOK_S = 0.05
"""Seconds of system time between two checks whether a command has ended after SIGTERM."""
NEVER_STARTS = frozenset({errno.ENOENT, errno.EACCES, errno.E2BIG, errno.ENOEXEC})
"""
Errors that mean that the program cannot start on any instance, because the job is wrong. Usually the cause is a wrong
`PATH` in the job's envs.
"""
NOT_FOUND = 127
"""Exit code of a shell that did not find its program."""
SPARE = -1
"""Incarnation of a trainer that has no place in an attempt yet. The letters about it belong to no attempt."""
STATE_DIR = "SPOTRUN_STATE_DIR"
TASK_ID = "SKYPILOT_TASK_ID"
"""
Variable that has the same value in all attempts. Scripts for SkyPilot use it in the names of their folders and logs.
"""


def not_started(program: str, error: OSError) -> str:
    return f"{program} cannot be started: {error.strerror}; check PATH and the job's other envs"


def training_command(spec: RunSpec, instance_dir: Path, python: str = sys.executable) -> list[str]:
    """Return the command of the training. `python` is the interpreter that is used if the run has no environment."""
    if spec.train.script is not None:
        return [environment.python(instance_dir, python), spec.train.script, *spec.train.args]
    if spec.train.module is not None:
        return [environment.python(instance_dir, python), "-m", spec.train.module, *spec.train.args]
    assert spec.train.run is not None
    return ["bash", "-c", spec.train.run]


def user_environment(
    spec: RunSpec, instance_dir: Path, instance_id: str, run_uid: str, container: Container | None = None
) -> dict[str, str]:
    """
    Return the environment variables of all programs that run on this instance for the user.

    `python` on their PATH is the interpreter of the run's Python environment. If the run has no environment, it is the
    interpreter of the container, or of the agent if there is no container. W&B sees all attempts as one run, unless the
    job's envs name a different W&B run.

    An instance of the local cloud inherits its runner's variables, with two exceptions: webhook addresses, which are
    for the runner only, and secrets, which are for the trainer only.
    """
    hidden = {AGENT, *(each.variable for each in spec.notify), *kept_from_setup(spec)}
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    if container is not None:
        inherited = variables(container, inherited)
    return {
        **names_for_loggers(run_uid),
        **inherited,
        TASK_ID: f"{spec.name}-{run_uid}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "PATH": os.pathsep.join(_path(instance_dir, container)),
        **environment.variables(instance_dir),
        **spec.envs,
        **start_file.environment(instance_dir),
        process_groups.TRAINER_VARIABLE: instance_id,
    }


def names_for_loggers(run_uid: str) -> dict[str, str]:
    """
    Return the variables that make logging services treat all attempts as one run.

    W&B (https://docs.wandb.ai/guides/runs/resuming): `wandb sync` appends an offline run to the run with the same id. A
    checkpoint includes only the lines that W&B has already written to the offline run's file. So one variable makes W&B
    write to that file every second instead of every 15 s.

    Comet: CometLogger calls `comet_ml.start`, which continues the experiment that has the given key, if there is one. A
    key has 32 to 50 letters and digits.
    """
    return {
        "WANDB_RUN_ID": f"spotrun-{run_uid}",
        "WANDB_RESUME": "allow",
        "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1",
        "COMET_EXPERIMENT_KEY": f"spotrun{run_uid:0>25}",
    }


def environment_of(context: AgentContext) -> dict[str, str]:
    place = context.assignment
    return user_environment(context.spec, place.folder, place.instance_id, place.run_uid, context.container)


def in_container(context: AgentContext, command: list[str]) -> list[str]:
    """Return the command line that runs `command` in the work folder, inside the container if there is one."""
    return command if context.container is None else context.container.within(command, context.assignment.work)


def _path(instance_dir: Path, container: Container | None) -> list[str]:
    own = [str(instance_dir / environment.FOLDER / "bin")] if environment.exists(instance_dir) else []
    if container is not None:
        return [*own, container.variables.get("PATH", os.defpath)]
    return [*own, str(_folder_of_python(instance_dir)), os.environ.get("PATH", os.defpath)]


def _folder_of_python(instance_dir: Path) -> Path:
    beside = Path(sys.executable).parent
    if (beside / "python").exists():
        return beside
    folder = instance_dir / "bin"
    folder.mkdir(exist_ok=True)
    # Write a script, not a link: Python looks for its virtual environment next to the path by which it was started, and
    # would look next to the link.
    (folder / "python").write_text(f'#!{shutil.which("sh")}\nexec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)
    return folder


class TrainerProcess:
    """
    The process of trainer `incarnation` of an attempt. The trainer's output begins at byte `log_start` of the console.

    A thread puts the trainer's messages into the agent's inbox, and after the last one, a letter about the trainer's
    end. The trainer counts as ended when its first process has ended; all its other processes are then killed.

    `late` is the file into which `meet` writes the trainer's late variables (spotrun/autoload/late_variables.py).
    """

    def __init__(self, incarnation: int, inbox: Inbox, clock: Clock, log_start: int, late: Path | None = None) -> None:
        self.incarnation = incarnation
        self.log_start = log_start
        self.hello: Hello | None = None
        self._inbox = inbox
        self._clock = clock
        self._entrance: Entrance | None = None
        self._link: TrainerLink | None = None
        self._reader: threading.Thread | None = None
        self._unsent: list[tuple[Message, Descriptors]] = []
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = threading.Event()
        self._termination: Termination | None = None
        self._late = late

    def start(self, command: Sequence[str], places: Assignment, environment: Mapping[str, str], output: int) -> None:
        self._entrance = entrance = Entrance(places.folder, lambda: self.incarnation, self._inbox)
        try:
            self._process = process = subprocess.Popen(
                command,
                cwd=places.work,
                env={**environment, AGENT: entrance.address},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            entrance.close()
            if error.errno not in NEVER_STARTS:
                raise
            os.write(output, f"{not_started(command[0], error)}\n".encode())
            self._gone.set()
            self._inbox.put(Exited(self.incarnation, NOT_FOUND, self._clock.now()))
            return
        if (mark := process_groups.mark(process.pid)) is not None:
            process_groups.remember(places.trainer_mark, mark)
        entrance.open(process.pid, self._lead)
        threading.Thread(target=self._wait, args=(process, entrance), name="trainer-end", daemon=True).start()

    def _lead(self, link: TrainerLink) -> None:
        """
        Take over the connection to the process that leads the training. Send the messages that were waiting for it.
        """
        reader = threading.Thread(target=self._read, args=(link,), name="trainer", daemon=True)
        reader.start()
        self._reader = reader  # before the welcome: a trainer may send all its messages and end as soon as it has that
        with self._sending:
            self._link = link
            self._send(link, Welcome(), ())
            while self._unsent:
                self._send(link, *self._unsent.pop(0))

    @property
    def is_warm(self) -> bool:
        """True if the trainer needs its late variables now, or has ended."""
        return self._gone.is_set() or (self._late is not None and Path(f"{self._late}{WAITING}").exists())

    def become(self, incarnation: int) -> bool:
        """
        Let this trainer be trainer `incarnation` of an attempt. Return False if it has another incarnation, or has
        ended as a spare.
        """
        with self._sending:
            if self.incarnation == SPARE and not self._gone.is_set():
                self.incarnation = incarnation
            return self.incarnation == incarnation

    def meet(self, variables: Mapping[str, str]) -> None:
        """Give the trainer its late variables. If it has none, do nothing."""
        if self._late is None:
            return
        written = self._late.with_suffix(".new")
        written.write_text(json.dumps(dict(variables)))
        written.rename(self._late)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """
        Send a message now, or, if the trainer has not connected yet, when it connects. If the trainer has ended, drop
        the message.
        """
        with self._sending:
            if self._link is None:
                self._unsent.append((message, Descriptors(map(os.dup, fds))))
            else:
                self._send(self._link, message, fds)

    @staticmethod
    def _send(link: TrainerLink, message: Message, fds: Sequence[int]) -> None:
        with contextlib.suppress(LinkClosed):
            link.send(message, fds)

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the running processes of the trainer's group have used."""
        return 0.0 if self._process is None or self._gone.is_set() else process_groups.cpu_s(self._process.pid)

    def runs_python(self) -> bool:
        return self._process is not None and not self._gone.is_set() and process_groups.runs_python(self._process.pid)

    def abort(self, note: Callable[[str], None]) -> None:
        """
        Send SIGABRT to the training process of each rank, whose faulthandler then prints the stacks of its threads.
        Before each rank's stacks, `note` gets a line that names the rank. Return without waiting.
        """
        if self._process is None or self._gone.is_set():
            return
        leader = self._entrance.leader if self._entrance is not None else None
        lives = leader is not None and process_groups.mark(leader.pid) == leader
        first = leader.pid if leader is not None and lives else self._process.pid
        others = process_groups.ranks(self._process.pid, first)
        work = partial(abort_ranks, first, others, note)
        threading.Thread(target=work, name="abort", daemon=True).start()

    def stop(self) -> None:
        """Send SIGSTOP to all processes of the trainer. They keep their state until `go_on` is called."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal_all(signal.SIGCONT)

    def terminate(self) -> None:
        """
        Send SIGTERM to the command, and return without waiting. A thread waits until the command has ended, and then
        sends SIGKILL to the processes of its group that remain.
        """
        if self._process is None or self._gone.is_set() or self._termination is not None:
            return
        self._termination = Termination(self._process.pid)
        threading.Thread(target=self._await, args=(self._termination,), name="sigterm", daemon=True).start()

    def _await(self, termination: Termination) -> None:
        while not self._gone.wait(LOOK_S) and not termination.is_over:
            pass
        self.kill()

    def kill(self) -> None:
        """
        Send SIGKILL to all of the trainer's processes, not only to the first. Data-loading workers, for example, would
        otherwise go on running for a while.
        """
        self._signal_all(signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        return self._gone.wait(timeout_s)

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is not None and not self._gone.is_set():
            process_groups.signal_all(self._process.pid, number)

    def _read(self, link: TrainerLink) -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                received = link.receive(None)
                assert received is not None
                message, fds = received
                now, now_s = self._clock.now(), self._clock.monotonic()
                self._inbox.put(TrainerMessage(self.incarnation, message, now, now_s, Descriptors(fds)))

    def _wait(self, process: subprocess.Popen[bytes], entrance: Entrance) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        ended_at = self._clock.now()
        entrance.close()
        process_groups.kill_group(process.pid)
        process_groups.end_each(lambda: _started_for(entrance.address))
        if self._reader is not None:
            self._reader.join(READ_REST_WITHIN_S)
        entrance.forget()
        exit_code = process.wait()
        with self._sending:
            self._gone.set()
            self._unsent.clear()
            if self._link is not None:
                self._link.close()
        termination = self._termination
        ended_well = exit_code == 0 if termination is None else termination.ended_well(exit_code)
        self._inbox.put(Exited(self.incarnation, exit_code, ended_at, ended_well))


def _state_dir(context: AgentContext) -> Path:
    """
    Return the folder in which a command keeps its state. Make the folder only if it is spotrun's default. If the job
    names another folder, the command has to make it: many commands start from scratch only if their folder is missing,
    and then make it themselves, with the mode that they want.
    """
    folder = context.assignment.work / context.spec.train.state_dir
    if context.spec.train.state_dir == STATE_DIR_OF_OURS:
        with contextlib.suppress(OSError):  # if a file is in the way, the command has to handle that
            folder.mkdir(exist_ok=True)
    return folder


def _started_for(address: str) -> list[int]:
    """
    Return the processes of a trainer that run outside of its process group. They are found by the address of the
    trainer's socket, which was in their environment when they started.
    """
    return [*proc.started_with(AGENT, address), *proc.started_with(AGENT, TAKEN + address)]


def _command(context: AgentContext) -> list[str]:
    """
    Return the command that starts the trainer, in the container if there is one. The container needs Python only if the
    job names a script, not if it names a command (`train: {run}`).

    If the container has ended, raise an AssertionError: the agent crashes, is restarted, and makes a new container.
    """
    folder, container = context.assignment.folder, context.container
    if container is None:
        return training_command(context.spec, folder)
    assert container.is_alive, f"the container {container.name} has ended"
    if context.spec.train.run is not None:
        return in_container(context, training_command(context.spec, folder))
    return in_container(context, training_command(context.spec, folder, python_in(container)))


def start_trainer(
    context: AgentContext, incarnation: int, meets: Mapping[str, str] | None = None, late: Path | None = None
) -> TrainerProcess:
    """
    Start a trainer. In a gang, `meets` are the environment variables that tell the trainer how to find the other
    trainers. If these are not known yet, `late` is the file into which they will be written.
    """
    process = TrainerProcess(incarnation, context.inbox, context.clock, context.console.size_bytes(), late)
    output = context.console.open()
    try:
        environment = listens_on(context.assignment.address) | environment_of(context)
        environment |= {name: value for name, value in context.secrets.values.items() if name not in CREDENTIALS}
        created_at = context.recorder.state.created_at
        environment |= seeding.variables(environment, context.spec.envs, context.assignment.run_uid, created_at)
        environment[STATE_DIR] = str(_state_dir(context))
        launch = context.recorder.state.launches[context.assignment.launch]
        environment |= meets or alone(launch.intent.offering.accelerators)
        environment[RANKS_SECRET] = context.ranks_secret
        if context.spec.virtual_ranks is not None:
            environment[VIRTUAL_RANKS] = str(context.spec.virtual_ranks)
            environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun sets it, but not for one process: other bits
        process.start(_command(context), context.assignment, environment, output)
    finally:
        os.close(output)
    return process


def abort_ranks(first: int, others: Mapping[int, int], note: Callable[[str], None]) -> None:
    """
    Abort the ranks one after another, rank 0 last: `first` is its process, and `others` has those of the other ranks.
    Meanwhile, the program that started them is stopped: otherwise, it would end all ranks as soon as the first is gone.
    """
    launchers = {found.parent for pid in others.values() if (found := proc.stat(pid)) is not None}
    for launcher in launchers:
        process_groups.signal_one(launcher, signal.SIGSTOP)
    for rank, pid in sorted(others.items()):
        note(f"stacks of rank {rank} (process {pid}):")
        _abort(pid)
    if others:
        note(f"stacks of rank 0 (process {first}):")
    _abort(first)
    for launcher in launchers:
        process_groups.signal_one(launcher, signal.SIGCONT)


def _abort(pid: int) -> None:
    """Let the process print its stacks, and wait until it has ended, but not for long."""
    process_groups.signal_one(pid, signal.SIGABRT)
    process_groups.signal_one(pid, signal.SIGCONT)
    until = time.monotonic() + STACKS_WITHIN_S
    while (found := proc.stat(pid)) is not None and not found.ended and time.monotonic() < until:
        time.sleep(LOOK_S)
