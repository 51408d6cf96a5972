"""
What public scripts keep in their checkpoints beside numbers and tensors: a run that is killed goes on with the same
kinds, schedulers hold the schedulers that they held, and hyper-parameters are notes.
"""

from __future__ import annotations

import pytest

from spotrun.checkpoint.snapshot import read_image
from spotrun.trainer_link import Refused, SnapshotTaken
from tests.support.trainings.agent import Agent

SCRIPT = '''
import enum, hashlib, os, signal, sys
from collections import Counter, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler, ReduceLROnPlateau

FOLDER = Path(sys.argv[1])
Point = namedtuple("Point", "step loss")

class Phase(enum.Enum):
    WARM = "warm"
    HOT = "hot"

@dataclass
class Meter:
    total: float = 0.0
    window: deque = field(default_factory=lambda: deque(maxlen=3))
    last: torch.Tensor = field(default_factory=lambda: torch.zeros(2))

    def add(self, loss):
        self.total += loss
        self.window.append(loss)
        self.last = torch.stack([self.last[1], torch.tensor(loss)])

class Watch(pl.Callback):
    """A state of many kinds, on which the weight decay depends."""

    def __init__(self):
        self.state = {"meters": [Meter()], "phase": Phase.WARM, "rest": range(40), "best": Point(0, 9.0),
                      "per": defaultdict(Counter), "by": {Phase.WARM: 0, Phase.HOT: 0}, "where": Path("x")}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss, state = outputs["loss"].item(), self.state
        if batch_idx == 4:
            state["meters"].append(Meter(1.0))
            state["phase"] = Phase.HOT
        for meter in state["meters"]:
            meter.add(loss)
        state["rest"] = state["rest"][1:]
        state["best"] = min(state["best"], Point(trainer.global_step, loss), key=lambda point: point.loss)
        state["by"][state["phase"]] += 1
        state["per"][batch_idx % 3]["seen"] += 1
        assert isinstance(state["where"], Path) and not state["where"].exists()
        decay = sum(m.total + sum(m.window) + m.last.sum().item() for m in state["meters"]) + state["rest"].start
        decay += state["best"].loss + state["by"][Phase.HOT] + sum(each["seen"] for each in state["per"].values())
        trainer.optimizers[0].param_groups[0]["weight_decay"] = 1e-4 * decay

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state

class Stop(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 14 and (FOLDER / "stop").exists():
            signal.pause()

class GradualWarmup(LRScheduler):
    """As the package of that name has it."""

    def __init__(self, optimizer, total, after, shape=lambda share: share ** 2):
        self.total, self.after_scheduler, self.finished, self.shape = total, after, False, shape
        super().__init__(optimizer)

    def get_lr(self):
        if self.last_epoch > self.total and self.after_scheduler:
            if not self.finished:
                self.after_scheduler.base_lrs = [rate * 1.5 for rate in self.base_lrs]
                self.finished = True
            return self.after_scheduler.get_last_lr()
        return [rate * self.shape((self.last_epoch + 1) / (self.total + 1)) for rate in self.base_lrs]

    def step(self, epoch=None):
        if self.finished and self.after_scheduler:
            self.after_scheduler.step()
            self._last_lr = self.after_scheduler.get_last_lr()
        else:
            super().step(epoch)

def not_biases(parameter):
    return parameter.ndim > 1

class Filtered(torch.optim.SGD):
    """As LARS of Barlow Twins: a function in its groups."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and group["filter"](parameter):
                    parameter.grad.mul_(0.5)
        return super().step(closure)

class Model(BoringModel):
    def __init__(self, cfg=None):
        super().__init__()
        HYPER
    def configure_optimizers(self):
        optimizer = Filtered([{"params": list(self.layer.parameters()), "filter": not_biases}], 0.1, 0.9)
        return [optimizer], [{"scheduler": GradualWarmup(optimizer, 5, AFTER), "interval": "step"}]
    MORE

pl.seed_everything(1)
model = Model(CFG)
trainer = pl.Trainer(max_epochs=2, limit_train_batches=10, limit_val_batches=1, accelerator="cpu", logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, callbacks=[Watch(), Stop()])
trainer.fit(model)
weights = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest()
rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
schedule = trainer.lr_scheduler_configs[0].scheduler
assert schedule.after_scheduler.optimizer is trainer.optimizers[0]
(FOLDER / "end").write_text(f"{weights} {rates} {schedule.after_scheduler.last_epoch} {trainer.callbacks[0].state}")
'''
MODULE_HOOKS = """
    seen = Meter()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.add(outputs["loss"].item())
        self.layer.bias.data.mul_(1 - 1e-4 * self.seen.total)
    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"], checkpoint["spread"] = self.seen, range(3)
    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]
        assert checkpoint["spread"] == range(3)
"""
OMEGACONF = """
from omegaconf import OmegaConf
CFG = OmegaConf.create({"lr": 0.1, "net": {"width": [1, 2], "depth": "???"}, "out": "${lr}"})
pl.seed_everything(1)
"""
VARIANTS = {
    "one scheduler in another": {"AFTER": "CosineAnnealingLR(optimizer, 9)"},
    "one that stops by a metric": {"AFTER": "ExponentialLR(optimizer, 0.8)", "MORE": MODULE_HOOKS},
    "any object for hyper-parameters": {
        "HYPER": 'self.save_hyperparameters({"f": torch.nn.MSELoss(), "phase": Phase.HOT, "kind": Meter, "m": Meter()})'
    },
    "Hydra's configuration": {
        "HYPER": "self.save_hyperparameters(cfg)",
        "pl.seed_everything(1)\n": OMEGACONF,
    },
}
DEFAULTS = {"AFTER": "CosineAnnealingLR(optimizer, 9)", "HYPER": "", "MORE": ""}


def script(variant):
    text = SCRIPT
    if "omegaconf" not in str(variant):
        variant = variant | {"Model(CFG)": "Model()"}
    for name, value in (DEFAULTS | variant).items():
        text = text.replace(name, value, 1)
    return text


def kill_from_step(step):
    def on_message(agent, message):
        if isinstance(message, SnapshotTaken) and message.step >= step:
            agent.kill()

    return on_message


@pytest.mark.pattern(
    "exact", "Lightning", of="name", texts={name: f"a schedule: {name}" for name in VARIANTS if "one" in name}
)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_killed_training_goes_on_with_what_its_checkpoint_holds(zygote, tmp_path, name):
    if "Hydra" in name:
        pytest.importorskip("omegaconf")
    (tmp_path / "script.py").write_text(script(VARIANTS[name]))
    ends = []
    for kind in ("straight", "killed"):
        folder = tmp_path / kind
        job = {"script": str(tmp_path / "script.py"), "args": [str(folder)]}
        agent = Agent(zygote, job, folder, every_steps=2, arenas=8)  # one for each snapshot until it waits to be killed
        if kind == "killed":
            (folder / "stop").touch()
            for step in (3, 9):
                agent.on_message = kill_from_step(step)
                assert agent.attempt() == "killed", agent.log.read_text()[-3000:]
            agent.on_message = None
            (folder / "stop").unlink()
        assert agent.attempt() == "finished", agent.log.read_text()[-5000:]
        ends.append((folder / "end").read_text())
    assert ends[0] == ends[1]
    if "hyper" in name:
        state, _ = read_image(bytearray(agent.image))
        assert state["hyper_parameters"]["kind"] == "<__main__.Meter>"
        assert state["hyper_parameters"]["phase"] == "hot"
    if "Hydra" in name:
        state, _ = read_image(bytearray(agent.image))
        assert state["hyper_parameters"]["net"] == {"width": [1, 2], "depth": "<MissingMandatoryValue>"}
        assert state["hyper_parameters"]["out"] == 0.1


NO_PLACE = {
    "a lambda": ('{"f": lambda: 1}', "Holder.f is a builtins.function"),
    "a library's object": ('[__import__("io").StringIO()]', "Holder.0 is a _io.StringIO"),
    "a default by a lambda": ('{"a": {"b": defaultdict(lambda: 1)}}', "Holder.a.b is a defaultdict whose default"),
    "an object of a local class": (
        '[type("Local", (), {})()]',
        "Holder.0 is a __main__.Local, which its module does not have",
    ),
}
REFUSED = """
from collections import defaultdict
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel

class Holder(pl.Callback):
    def state_dict(self):
        return VALUE

pl.Trainer(max_steps=2, limit_val_batches=0, accelerator="cpu", logger=False, enable_checkpointing=False,
           callbacks=[Holder()]).fit(BoringModel())
"""


@pytest.mark.pattern("refused", "Lightning", of="name", texts={name: f"state that is {name}" for name in NO_PLACE})
@pytest.mark.parametrize("name", NO_PLACE)
def test_state_without_an_exact_form_is_refused_before_the_first_step(zygote, tmp_path, name):
    value, words = NO_PLACE[name]
    (tmp_path / "script.py").write_text(REFUSED.replace("VALUE", value))
    agent = Agent(zygote, {"script": str(tmp_path / "script.py")}, tmp_path)
    assert agent.attempt() == "refused", agent.log.read_text()[-3000:]
    (refused,) = agent.told(Refused)
    assert refused.reason.startswith(f"the state holds callbacks.{words}")
