"""What a training changes and no checkpoint holds: the agent hears of it, and writes it down once, or the run ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.trainer_link import Finished, NotCarried, Refused, SnapshotTaken
from tests.support.agent_bench import Start
from tests.support.trainings import state_script
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

SCRIPT = """
import os, queue, socket
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

class Counted(Dataset):
    reads = 0
    def __len__(self):
        return 16
    def __getitem__(self, index):
        self.reads += 1
        return torch.full((2,), float(index))

def numbers():
    yield from iter(range(99))

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.link, self.other_end = socket.socketpair()
        self.tasks, self.numbers, self.steps = queue.Queue(), numbers(), 0
    def training_step(self, batch, batch_idx):
        self.steps += 1
        if self.steps > 2:
            self.tasks.put(next(self.numbers))
            os.environ["STAGE"] = "2"
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

if __name__ == "__main__":
    pl.seed_everything(1, verbose=False)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", **quiet)
    trainer.fit(Net(), DataLoader(Counted(), 2, num_workers=1, persistent_workers=True))
"""
LATE_AVERAGE = """
import pytorch_lightning as pl
import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

class Averages(pl.Callback):
    average = None
    def on_train_batch_end(self, trainer, module, *_):
        if self.average is None and trainer.global_step >= 3:
            self.average = AveragedModel(module.layer)
        if self.average is not None:
            self.average.update_parameters(module.layer)

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

if __name__ == "__main__":
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[Averages()], **quiet)
    trainer.fit(Net(), DataLoader(torch.ones(200, 2)))
"""
LOST = {
    "module.link": "socket.socket", "module.other_end": "socket.socket", "module.tasks": "queue.Queue",
    "module.numbers": "generator", "os.environ['STAGE']": "an environment variable",
    "Counted.reads": "kept in a worker of its loader",
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def places(agent: Agent) -> dict[str, str]:
    return {place: what for message in agent.told(NotCarried) for place, what in message.places}


def kill_at(step: int) -> Callable[[Agent, object], None]:
    def kill(agent: Agent, message: object) -> None:
        if isinstance(message, SnapshotTaken) and message.step >= step and agent.attempts == 1:
            agent.kill()

    return kill


def test_all_that_is_in_no_checkpoint_is_named_before_and_after_a_resume(
    zygote: Zygote, tmp_path: Path, script: str
) -> None:
    agent = Agent(zygote, {"script": script}, tmp_path / "run", every_steps=1, on_message=kill_at(6))
    assert agent.attempt() == "killed", agent.log.read_text()[-3000:]
    assert places(agent) == LOST
    told = [place for message in agent.told(NotCarried) for place, _ in message.places]
    assert len(told) == len(LOST), "each once"
    (tasks,) = [message for message in agent.told(NotCarried) if "module.tasks" in dict(message.places)]
    first = min(taken.step for taken in agent.told(SnapshotTaken) if taken.step >= 3)
    assert tasks.step == first, "the first snapshot after the change says it"
    agent.messages.clear()
    assert agent.attempt() == "finished", agent.log.read_text()[-3000:]
    assert places(agent) == LOST


def test_an_average_that_a_batch_has_made_is_named_and_the_training_goes_on(zygote: Zygote, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LATE_AVERAGE)
    agent = Agent(zygote, {"script": str(script)}, tmp_path / "run", every_steps=1, on_message=kill_at(5))
    assert agent.attempt() == "killed", agent.log.read_text()[-3000:]
    assert agent.attempt() == "finished", agent.log.read_text()[-3000:]
    assert places(agent) == {"callbacks[0].average": "a new torch.optim.swa_utils.AveragedModel"}


def test_a_training_that_has_to_be_exact_ends_at_the_first_change(zygote: Zygote, tmp_path: Path, script: str) -> None:
    agent = Agent(zygote, {"script": script}, tmp_path / "run", every_steps=1, exact="require")
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    (refused,) = agent.told(Refused)
    (first, *_) = places(agent).items()
    assert first in LOST.items()
    assert f"{first[0]} has changed and is in no checkpoint: {first[1]}" in refused.reason
    assert "checkpoint.exact forbids it" in refused.reason
    assert "docs/checkpoints.md" in refused.hint
    assert not agent.told(Finished)


def test_a_training_that_carries_all_may_have_to_be_exact(zygote: Zygote, tmp_path: Path) -> None:
    job = {"script": str(Path(state_script.__file__))}
    agent = Agent(zygote, job, tmp_path / "run", every_steps=1, exact="require")
    agent.run(["batch:0:6", "batch:1:2"])
    assert not agent.told(NotCarried)


# --- the agent


def test_the_ledger_names_it_once_whatever_dies(start: Start, tmp_path: Path) -> None:
    run = start({"loses_every": 10, "acts": {"step 35": "kill"}, "once": str(tmp_path)})
    run.launch().powers_off()
    run.wait_for(ev.RunCompleted)
    assert len(run.seen(ev.ResumedFrom)) == 2
    (named,) = run.seen(ev.StateNotCarried)
    assert named.places == (ev.Uncarried(place="module.link", what="socket.socket"),)
    assert named.step == 10
    (known,) = run.state.not_carried
    assert (known.place, known.step) == ("module.link", 10)


def test_a_run_that_has_to_be_exact_ends_there_and_is_not_tried_again(start: Start) -> None:
    run = start({"loses_every": 20}, checkpoint={"every": "30s", "exact": "require"})
    run.launch().powers_off()
    ended = run.wait_for(ev.AttemptEnded)
    assert (ended.cause, ended.detail) == (Cause.USER_ERROR, "module.link has changed; try: do otherwise")
    assert run.seen(ev.TrainerExited) == []
    assert [one.place for one in run.state.not_carried] == ["module.link"]
