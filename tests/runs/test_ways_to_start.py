"""
However a job starts its training, the real agent saves it: killed in the middle, it goes on from a checkpoint and ends
with the weights of one that nobody disturbed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotrun.account.summary import summarise
from spotrun.folder.final_status import run_status
from spotrun.report.why import decisions
from spotrun.run import events as ev
from spotrun.spec.model import RunSpec
from tests.support import own_environment
from tests.support.agent_bench import AgentRun, Node
from tests.support.eventually import eventually
from tests.support.repository import JOBS

WHOLE = (JOBS / "fitted.py").read_text()
SHORT = "import fast_imports\n"
"""What spares each of these trainers three seconds. `make nightly` has one that imports all, with the same weights."""
STEPS = 30
STEPS_OF_TWO = 16
CLI = """
import fast_imports
from lightning.pytorch.cli import LightningCLI
from fitted import OPTIONS, Data, Model
LightningCLI(Model, Data, trainer_defaults=OPTIONS, seed_everything_default=1, save_config_callback=None)
"""
HYDRA = """
import os
from pathlib import Path
import hydra
from fitted import train

@hydra.main(version_base=None, config_path=None)
def main(config):
    with Path(os.environ["TRACE"]).with_name("folders").open("a") as folders:
        folders.write(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir + "\\n")
    train()

main()
"""
DDP = """
import os
import psutil
from fitted import train
assert len(os.environ["SPOTRUN_RANKS_SECRET"]) == 64
train(strategy="ddp", devices=2)
found = [each for process in (psutil.Process(), *psutil.Process().parents()[:1]) for each in process.net_connections()]
ports = [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]
assert ports and {*ports} == {"127.0.0.1"}, f"listens at {ports}"
"""
MAKES = 'python -c "print(1)"\ncd .\npython fitted.py\necho made\n'


@pytest.fixture(scope="module")
def own_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_environment.make(tmp_path_factory.mktemp("own"))


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    runs: list[AgentRun] = []

    def make(train: dict[str, Any], **files: str) -> AgentRun:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        ours = {"fitted.py": SHORT + WHOLE, "fast_imports.py": (JOBS / "fast_imports.py").read_text()}
        written = ours | {name.replace("__", "."): text for name, text in files.items()}
        runs.append(AgentRun(tmp_path, scale=30.0, train=train, files=written, envs={"TRACE": str(tmp_path / "trace")}))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def killed_once(run: AgentRun, steps: int = STEPS) -> Node:
    """SIGKILL the training process, not what has started it, when a checkpoint is durable."""
    node = run.launch()
    run.wait_for(ev.CheckpointCommitted, within_s=90)
    os.kill(run.steps_done()[-1][0], signal.SIGKILL)
    node.powers_off(120)
    resumed, *more = [event for event in run.seen(ev.ResumedFrom) if event.commit is not None]
    assert not more, f"it was started again after more than the kill: {run.seen(ev.TrainerExited)}\n{run.log(node)}"
    done = [step for _, step in run.steps_done()]
    assert sorted(set(done)) == list(range(1, steps + 1)), run.log(node)
    last = run.steps_done()[-1][0]
    assert next(step for pid, step in run.steps_done() if pid == last) == resumed.step + 1 > 1
    assert run.state.terminal is not None
    assert run.state.terminal.outcome == "completed", run.log(node)
    return node


def result(run: AgentRun) -> str:
    return (run.folder / "result").read_text()


EXPECTED: set[str] = set()
"""The weights that each way has come to: all have the same."""


def check(run: AgentRun) -> Node:
    node = killed_once(run)
    EXPECTED.add(result(run))
    assert len(EXPECTED) == 1
    return node


@pytest.mark.parametrize("imports", [SHORT, pytest.param("", marks=pytest.mark.nightly)], ids=["fast", "all"])
def test_undisturbed_script_completes(begin: Any, imports: str) -> None:
    run = begin({"script": "fitted.py"}, fitted__py=imports + WHOLE)
    run.launch().powers_off(120)
    EXPECTED.add(result(run))
    assert len(EXPECTED) == 1


def test_a_module(begin: Any) -> None:
    check(begin({"module": "fitted"}))


@pytest.mark.nightly
def test_a_shell_script(begin: Any) -> None:
    run = begin({"run": "bash make.sh"}, make__sh=MAKES)
    check(run)


@pytest.mark.nightly
def test_lightning_cli(begin: Any) -> None:
    check(begin({"script": "cli.py", "args": ["fit", "--model.lr=0.1"]}, cli__py=CLI))


@pytest.mark.nightly
def test_hydra_keeps_the_name_of_its_folder(begin: Any) -> None:
    run = begin({"script": "app.py"}, app__py=HYDRA)
    check(run)
    first, second = (run.folder / "folders").read_text().split()
    assert first == second
    started = run.state.created_at.astimezone()
    assert first.endswith(f"{started:outputs/%Y-%m-%d/%H-%M-%S}")


@pytest.mark.nightly
def test_accelerate_launch(begin: Any) -> None:
    command = "accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no fitted.py"
    check(begin({"run": f"{Path(sys.executable).parent}/{command}"}))


def test_an_environment_of_its_own_that_has_nothing_of_ours(begin: Any, own_python: Path) -> None:
    check(begin({"run": f"{own_python} fitted.py"}))


@pytest.mark.nightly
def test_uv_run(begin: Any, own_python: Path) -> None:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    check(begin({"run": f"{uv} run --offline --no-project --python {own_python} python fitted.py"}))


@pytest.mark.nightly
def test_torchrun_on_two_processes(begin: Any) -> None:
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node 2 ddp.py"
    run = begin({"run": command}, ddp__py=DDP)
    killed_once(run, STEPS_OF_TWO)


def test_two_trainings_in_a_command_are_refused(begin: Any) -> None:
    run = begin({"run": "python fitted.py & python fitted.py; wait"})
    run.launch().powers_off(120)
    (ended,) = run.seen(ev.AttemptEnded)
    assert ended.cause == ev.Cause.USER_ERROR
    assert "trains at the same time in two processes" in ended.detail
    assert "a separate job" in ended.detail


@pytest.mark.nightly
def test_isolated_python_trains_by_the_socket_path_alone(begin: Any) -> None:
    """Lightning's entry point does not need the shim, and the path of the socket is enough."""
    run = begin({"run": "python -I -c \"import sys; sys.path.insert(0, '.'); import fitted; fitted.train()\""})
    killed_once(run)


FAILS_ONCE = """
import os
from pathlib import Path
import fitted

class Fails(fitted.Model):
    def training_step(self, batch):
        if self.global_step == 12 and not Path(os.environ["TRACE"]).with_name("failed").exists():
            Path(os.environ["TRACE"]).with_name("failed").touch()
            raise RuntimeError("planted")
        return super().training_step(batch)

fitted.Model = Fails
fitted.train()
"""


def test_a_command_that_begins_its_training_again_is_started_again_and_resumes(begin: Any) -> None:
    run = begin({"run": "until python fails.py; do echo again; done"}, fails__py=FAILS_ONCE)
    node = run.launch()
    node.powers_off(120)
    (exited,) = run.seen(ev.TrainerExited)
    assert exited.cause is ev.Cause.USER_ERROR
    assert "planted" in exited.detail
    assert run.state.terminal is not None
    assert "its command began another training" in run.log(node)
    assert sorted({step for _, step in run.steps_done()}) == list(range(1, STEPS + 1))
    EXPECTED.add(result(run))
    assert len(EXPECTED) == 1


def test_two_trainings_one_after_the_other_are_refused(begin: Any) -> None:
    run = begin({"run": "python fitted.py && python fitted.py"})
    run.launch().powers_off(120)
    (ended,) = run.seen(ev.AttemptEnded)
    assert ended.cause is ev.Cause.USER_ERROR
    assert "trains one after the other in two processes" in ended.detail


IGNORES_US = "import time\nopen('begun', 'w')\ntime.sleep(1000)\n"


def told_unprotected(run: AgentRun, node: Node) -> ev.TrainingStarted:
    started = run.wait_for(ev.TrainingStarted)
    eventually(lambda: "[spotrun] " in run.log(node))
    return started


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTRUN_BEGUN_AFTER_S", "0.1")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("command", ["python -I ignores.py", "bash -c 'python ignores.py; true'"])
def test_a_python_that_finds_no_agent_is_unprotected_and_said_to_be(begin: Any, command: str) -> None:
    run = begin({"run": command}, ignores__py=IGNORES_US)
    node = run.launch()
    assert told_unprotected(run, node).unprotected
    eventually(lambda: "UNPROTECTED: the command runs Python" in run.log(node))
    assert run.state.is_unprotected
    decided = decisions(run.ledger.entries, RunSpec.from_dict(run.state.created.spec))
    (told,) = [one.sentence for one in decided if one.kind == "unprotected"]
    assert "no training in it has connected to spotrun" in told
    status = run_status(run.state, summarise(run.state, run.clock.now()), run.clock.now())
    assert status.unprotected


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("train", [{"run": "sleep 1000"}, {"run": "python ignores.py", "state": ["out/"]}])
def test_command_that_is_no_python_or_keeps_a_state_is_not_called_unprotected(
    begin: Any, train: dict[str, Any]
) -> None:
    run = begin(train, ignores__py=IGNORES_US)
    run.launch()
    assert not run.wait_for(ev.TrainingStarted).unprotected
    assert not run.state.is_unprotected


def test_a_python_that_has_hardly_computed_may_be_importing_yet(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine. What sleeps all the time is told after five times as long."""
    monkeypatch.setenv("SPOTRUN_BEGUN_AFTER_S", "1")
    run = begin({"run": "python ignores.py"}, ignores__py=IGNORES_US)
    node = run.launch()
    told = told_unprotected(run, node)
    assert told.unprotected
    waited_s = (run.ledger.entries[-1].at - told.began_at).total_seconds() / run.clock.scale
    assert waited_s >= 5


@pytest.mark.usefixtures("soon")
def test_a_training_that_comes_late_is_protected_from_there_on(begin: Any) -> None:
    late = "import time\nfrom fitted import train\ntime.sleep(6)\ntrain()\n"
    run = begin({"script": "late.py"}, late__py=late)
    node = run.launch()
    assert told_unprotected(run, node).unprotected
    node.powers_off(120)
    assert "checkpoints are saved from now on" in run.log(node)
    assert not run.state.is_unprotected
    assert run.state.commits
