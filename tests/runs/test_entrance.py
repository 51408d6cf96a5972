"""Who may come in at a trainer's socket, and which process of its command leads the training. Real processes."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotrun.agent.inbox import CameTooLate, Exited, Inbox, Letter, Stranger, TrainerMessage
from spotrun.agent.processes.socket_credentials import Peer, why_stranger
from spotrun.agent.processes.trainer_process import TrainerProcess
from spotrun.agent.processes.trainer_socket import NAME, STRANGERS_MAX
from spotrun.clock import system_clock
from spotrun.trainer_link import AGENT, DrainWanted, Finished, Progress
from spotrun.wire import unix_path
from tests.support.eventually import eventually
from tests.support.repository import ROOT

COMES = """
import os, sys
from spotrun import trainer_link
from spotrun.trainer_link import DrainWanted, Finished, LinkLost

def come(step=0):
    try:
        link = trainer_link.from_environment()
    except LinkLost as lost:
        print(f"lost: {lost}; {lost.hint}", flush=True)
        return None
    if link is None:
        print("alone", flush=True)
    else:
        link.send(Finished(step=step, epoch=os.getpid()))
    return link
"""


class Started:
    """A trainer process in a folder of its own, with what it says."""

    def __init__(self, folder: Path, command: str | list[str], incarnation: int = 0) -> None:
        self.folder = folder
        (folder / "work").mkdir(parents=True, exist_ok=True)
        (folder / "work" / "comes.py").write_text(COMES)
        self.output = folder / "output"
        self.inbox: Inbox = queue.SimpleQueue()
        self.process = TrainerProcess(incarnation, self.inbox, system_clock(), 0)
        places: Any = SimpleNamespace(folder=folder, work=folder / "work", trainer_mark=folder / "trainer.json")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PY": sys.executable}
        words = ["bash", "-c", textwrap.dedent(command)] if isinstance(command, str) else command
        with self.output.open("ab") as output:
            self.process.start(words, places, environment, output.fileno())

    @property
    def address(self) -> str:
        (found,) = self.folder.glob(f"{NAME}*")
        return str(found)

    def hear(self) -> Letter:
        return self.inbox.get(timeout=30)

    def end(self) -> list[Letter]:
        """All that it said, its end last."""
        letters = [self.hear()]
        while not isinstance(letters[-1], Exited):
            letters.append(self.hear())
        return letters

    def said(self) -> str:
        return self.output.read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    begun: list[Started] = []

    def begin(command: str | list[str], *, folder: Path = tmp_path, incarnation: int = 0) -> Started:
        begun.append(Started(folder, command, incarnation))
        return begun[-1]

    yield begin
    for each in begun:
        each.process.kill()
        each.process.wait(10)


def steps(letters: list[Letter]) -> list[int]:
    return [
        each.message.step for each in letters if isinstance(each, TrainerMessage) and isinstance(each.message, Finished)
    ]


WAYS = {
    "itself": '"$PY" -c "import comes; comes.come(1)"',
    "exec": 'exec "$PY" -c "import comes; comes.come(1)"',
    "a shell in a shell": """bash -c "bash -c '$PY -c \\"import comes; comes.come(1)\\"; true'; true" """,
    "subprocess": """
        "$PY" -c "
        import subprocess, sys
        subprocess.run([sys.executable, '-c', 'import comes; comes.come(1)'], close_fds=True)"
        """,
    "a session of its own": 'setsid --wait "$PY" -c "import comes; comes.come(1)"',
    "a session of its own, and no parent": """
        (setsid "$PY" -c "import comes, os; comes.come(1); open('done', 'w')" &)
        while [ ! -e done ]; do sleep 0.05; done
        """,
    "a fork": '''"$PY" -c "
import comes, os
if os.fork() == 0:
    comes.come(1); os._exit(0)
os.wait()"''',
    "a child of multiprocessing": '''"$PY" -c "
import comes, multiprocessing
child = multiprocessing.get_context('spawn').Process(target=comes.come, args=(1,)); child.start(); child.join()"''',
    "its variables alone": """
        env -i "$(env | grep ^SPOTRUN_AGENT=)" PYTHONPATH="$PYTHONPATH" "$PY" -c "import comes; comes.come(1)"
        """,
}


@pytest.mark.parametrize("way", WAYS)
def test_however_a_command_starts_it_its_training_comes_in(start: Any, way: str) -> None:
    begun = start(WAYS[way])
    letters = begun.end()
    assert steps(letters) == [1], begun.said()
    assert not [each for each in letters if isinstance(each, CameTooLate | Stranger)]


def test_training_is_welcomed_only_when_its_messages_are_read(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends as soon as it is welcomed would otherwise lose what it said."""
    reads = []
    begin = threading.Thread.start

    def slow(thread: threading.Thread) -> None:
        if thread.name == "trainer":
            reads.append(begun.said())  # it says "welcome" as soon as it is
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    go_on = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    begun = start([sys.executable, "-c", f"{go_on}import comes; comes.come(1); print('welcome', flush=True)"])
    (begun.folder / "work" / "go").touch()
    assert steps(begun.end()) == [1]
    assert reads == [""]


def test_a_folder_may_have_a_long_name_with_spaces(start: Any, tmp_path: Path) -> None:
    begun = start(WAYS["itself"], folder=tmp_path / ("a folder " * 22).strip() / "ümläut" / ("x" * 200))
    assert steps(begun.end()) == [1], begun.said()


def test_trainer_first_receives_messages_sent_before_it_connected(start: Any) -> None:
    code = "import comes; link = comes.come(); got = [link.receive(9) for _ in range(2)]; print(got)"
    begun = start([sys.executable, "-c", f"import time; time.sleep(0.3); {code}"])
    with open(begun.folder / "file", "w+") as file:
        begun.process.send(DrainWanted(reason="first"), [file.fileno()])
    begun.process.send(DrainWanted(reason="second"))
    begun.end()
    assert "'first'" in begun.said().partition("'second'")[0]
    assert "[]" not in begun.said().partition("'second'")[0]


def test_child_process_of_a_training_has_no_agent(start: Any) -> None:
    child = "subprocess.run([sys.executable, '-c', 'import comes; comes.come(2)'])"
    code = f"import comes, subprocess, sys; comes.come(1); {child}"
    begun = start([sys.executable, "-c", code])
    assert steps(begun.end()) == [1]
    assert begun.said() == "alone\n"


def test_the_second_of_two_that_train_at_once_is_turned_away(start: Any) -> None:
    begun = start("""
        "$PY" -c "import comes; link = comes.come(1); open('one', 'w'); link.receive(30)" &
        while [ ! -e one ]; do sleep 0.05; done
        "$PY" -c "import comes; comes.come(2)"
        """)
    letters = begun.end()
    (first,) = [each for each in letters if isinstance(each, TrainerMessage)]
    (late,) = [each for each in letters if isinstance(each, CameTooLate)]
    assert isinstance(first.message, Finished)
    assert (late.leader, late.alone) == (first.message.epoch, False)
    assert f"process {late.leader} of the same command already trains" in begun.said()
    assert "into a separate job" in begun.said()


def test_one_that_comes_after_the_other_is_alone(start: Any) -> None:
    begun = start('"$PY" -c "import comes; comes.come(1)"; "$PY" -c "import comes; comes.come(2)"')
    first, late = begun.hear(), begun.hear()
    assert isinstance(first, TrainerMessage)
    assert isinstance(late, CameTooLate)
    assert late.alone
    begun.process.kill()
    assert steps(begun.end()) == []
    assert begun.said() == "", "it waits for its end, and says nothing"


def test_a_child_may_come_before_its_parent_which_is_then_late(start: Any) -> None:
    begun = start("""
        "$PY" -c "if True:
            import comes, os, time
            if os.fork() == 0:
                comes.come(1); open('one', 'w'); time.sleep(9)
            while not os.path.exists('one'): time.sleep(0.02)
            comes.come(2)"
        """)
    letters = begun.end()
    assert steps(letters) == [1]
    assert len([each for each in letters if isinstance(each, CameTooLate)]) == 1


def test_unrelated_process_of_the_same_user_is_refused(start: Any) -> None:
    """Of the same user, at the right path: it does not descend from the trainer, nor has its environment."""
    begun = start("\"$PY\" -c \"import comes; comes.come(1); open('one', 'w')\"; sleep 30")
    eventually(lambda: (begun.folder / "work" / "one").exists(), 20)
    code = f"import os; os.environ['{AGENT}'] = {begun.address!r}; import comes; comes.come(2)"
    forged = subprocess.run(
        [sys.executable, "-c", code],
        cwd=begun.folder / "work",
        env={name: value for name, value in os.environ.items() if name != AGENT} | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "does not belong to this training" in forged.stdout
    begun.process.kill()
    letters = begun.end()
    assert steps(letters) == [1]
    assert len([each for each in letters if isinstance(each, Stranger)]) == 1


def test_leftover_process_of_an_earlier_trainer_finds_no_socket(start: Any, tmp_path: Path) -> None:
    first = start("true")
    old = Path(first.process._entrance.address)  # type: ignore[union-attr]
    first.end()
    assert not old.exists()
    second = start("sleep 30", incarnation=1)
    zombie = subprocess.run(
        [sys.executable, "-c", "import comes; comes.come(2)"],
        cwd=tmp_path / "work",
        env={**os.environ, AGENT: str(old), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no agent listens" in zombie.stdout
    second.process.kill()
    assert steps(second.end()) == []


def test_the_end_of_a_trainer_is_that_of_all_it_started_in_sessions_of_their_own(start: Any) -> None:
    """As `torchrun` starts its ranks: the signal to the group does not reach them."""
    begun = start("""
        "$PY" -c "import comes, os, time; comes.come(1); open('one', 'w').write(str(os.getpid())); time.sleep(600)" &
        setsid "$PY" -c "import os, time; open('two', 'w').write(str(os.getpid())); time.sleep(600)" &
        while [ ! -s one -o ! -s two ]; do sleep 0.05; done
        kill -9 $$
        """)
    begun.end()
    for name in ("one", "two"):
        pid = int((begun.folder / "work" / name).read_text())
        with contextlib.suppress(FileNotFoundError):
            assert "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_a_pause_holds_what_is_in_sessions_of_its_own_too(start: Any) -> None:
    begun = start("""
        setsid "$PY" -c "
        import os
        open('two', 'w').write(str(os.getpid()))
        while True: pass" &
        wait
        """)
    work = begun.folder / "work"
    eventually(lambda: (work / "two").exists() and (work / "two").read_text(), 20)
    status = Path(f"/proc/{(work / 'two').read_text()}/status")
    eventually(lambda: begun.process.cpu_s() > 0.2, 20)
    begun.process.stop()
    eventually(lambda: "State:\tT" in status.read_text(), 5)
    begun.process.go_on()
    eventually(lambda: "State:\tR" in status.read_text(), 5)


def test_progress_arrives_whole(start: Any) -> None:
    code = (
        "import comes; from spotrun.trainer_link import Progress\n"
        "comes.come().send(Progress(epoch=0, batch=1, batches=2, step=3, epochs=4, phase='train', metrics={'a': 0.5}))"
    )
    messages = [each.message for each in start([sys.executable, "-c", code]).end() if isinstance(each, TrainerMessage)]
    expected = Progress(epoch=0, batch=1, batches=2, step=3, epochs=4, phase="train", metrics={"a": 0.5})
    assert messages[1] == expected


def test_a_crowd_of_strangers_keeps_no_training_out_and_fills_no_log(start: Any) -> None:
    begun = start('while [ ! -e now ]; do sleep 0.05; done; "$PY" -c "import comes; comes.come(1)"')
    arrived = threading.Barrier(9)

    def come_again_and_again() -> None:
        for _ in range(10):
            unix_path.connect(begun.address, 30).close()
        arrived.wait(30)
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):  # the training is over
            for _ in range(10):
                unix_path.connect(begun.address, 30).close()

    crowd = [threading.Thread(target=come_again_and_again) for _ in range(8)]
    for each in crowd:
        each.start()
    arrived.wait(30)
    (begun.folder / "work" / "now").touch()
    for each in crowd:
        each.join()
    letters = begun.end()
    assert steps(letters) == [1], begun.said()
    assert len([each for each in letters if isinstance(each, Stranger)]) == STRANGERS_MAX


def test_process_of_another_user_is_always_refused(start: Any) -> None:
    begun = start("sleep 30")
    trainer = Path(f"/proc/{begun.process._process.pid}")  # type: ignore[union-attr]
    assert trainer.exists()
    pid = int(trainer.name)
    assert why_stranger(Peer(pid, os.geteuid()), pid, AGENT, begun.address) == ""
    assert "belongs to user" in why_stranger(Peer(pid, os.geteuid() + 1), pid, AGENT, begun.address)
    assert "does not belong to this training" in why_stranger(Peer(0, os.geteuid()), pid, AGENT, begun.address)
    assert "does not belong to this training" in why_stranger(Peer(1 << 22, os.geteuid()), pid, AGENT, begun.address)
