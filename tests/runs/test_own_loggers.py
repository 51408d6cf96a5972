"""
Loggers of the script's own classes: what they gather goes with the training, what they hold that cannot go is named,
and spotrun writes no figures into them.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from spotrun.trainer_link import EpochEnded, Figures, Hello, NotCarried, SnapshotTaken
from tests.support.trainings.agent import Agent
from tests.support.trainings.trainers import Zygote

LOGGERS = """
import collections, dataclasses, json, queue, threading
from pathlib import Path
import pytorch_lightning as pl
from pytorch_lightning.loggers import CSVLogger, Logger
from pytorch_lightning.profilers import Profiler

class Own(Logger):
    name, version = "own", 0
    def log_hyperparams(self, params, *args, **options):
        pass
    def log_metrics(self, metrics, step=None):
        self.add(dict(metrics), step)

@dataclasses.dataclass
class History(Own):
    \"\"\"Has no hash, as a dataclass.\"\"\"
    path: Path
    rows: list = dataclasses.field(default_factory=list)
    def add(self, metrics, step):
        self.rows.append({"step": step, **metrics})
    def save(self):
        self.path.write_text(json.dumps(self.rows))

class ByName(Own):
    \"\"\"A dict of lists; its `experiment` comes with the first metric.\"\"\"
    def __init__(self, path):
        super().__init__()
        self.path, self.seen, self._made = path, collections.defaultdict(list), None
    @property
    def experiment(self):
        if self._made is None:
            self._made = Experiment()
        return self._made
    def add(self, metrics, step):
        for name, value in metrics.items():
            self.seen[name].append((step, value))
        self.experiment.count += 1
        self.path.write_text(json.dumps([self.seen, self.experiment.count]))

class Experiment:
    count = 0

class Table(CSVLogger):
    \"\"\"A library's logger that remembers the best.\"\"\"
    best = None
    def log_metrics(self, metrics, step=None):
        super().log_metrics(metrics, step)
        self.best = min([each for each in (self.best, metrics.get("loss")) if each is not None], default=None)
        self.names = sorted({*getattr(self, "names", []), *metrics})
        Path(self.root_dir, "best.json").write_text(json.dumps([self.best, self.names]))

class Threaded(Own):
    \"\"\"Its rows wait for a thread, which never comes to them.\"\"\"
    def __init__(self):
        super().__init__()
        self.lock, self.waiting = threading.Lock(), queue.SimpleQueue()
        self.rows = 0
    def add(self, metrics, step):
        with self.lock:
            self.waiting.put((step, metrics))

class Counted(Profiler):
    def __init__(self, path):
        super().__init__()
        self.path, self.counts = path, collections.Counter()
    def start(self, name):
        self.counts["steps"] += "run_training_batch" in name
        self.path.write_text(str(self.counts["steps"]))
    def stop(self, name):
        pass
"""
SCRIPT = """
import sys
from pathlib import Path
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader
sys.path.insert(0, str(Path(__file__).parent))
import own_loggers

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss
    def on_train_epoch_start(self):
        if self.current_epoch == 2:
            self.trainer.loggers.append(own_loggers.History(folder / "late.json"))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

def main():
    pl.seed_everything(1, verbose=False)
    loggers = [own_loggers.History(folder / "history.json"), own_loggers.ByName(folder / "by_name.json"),
               own_loggers.Table(folder / "logs"), own_loggers.Threaded()]
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=4, accelerator="cpu", logger=loggers, log_every_n_steps=1,
                         profiler=own_loggers.Counted(folder / "steps"), **quiet)
    trainer.fit(Net(), DataLoader(torch.ones(8, 2), 2))

folder = Path(sys.argv[1])
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "own_loggers.py").write_text(textwrap.dedent(LOGGERS))
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def tell_figures(agent: Agent, message: object) -> None:
    if isinstance(message, Hello | EpochEnded):
        agent.link.send(Figures(cost_usd=1.0, usd_per_epoch=None, lost_s=7.5, attempt=agent.attempts, epochs=1))


def kill_at(step: int) -> Callable[[Agent, object], None]:
    def kill(agent: Agent, message: object) -> None:
        tell_figures(agent, message)
        if isinstance(message, SnapshotTaken) and message.step >= step:
            agent.kill()

    return kill


def left(folder: Path) -> dict[str, str]:
    names = ("history.json", "by_name.json", "logs/lightning_logs/best.json", "steps")
    return {name: (folder / name).read_text() for name in names}


def test_loggers_of_the_script_go_on_with_all_their_rows(zygote: Zygote, tmp_path: Path, script: str) -> None:
    found, folders = [], [tmp_path / name for name in ("straight", "killed")]
    for folder in folders:
        job = {"script": script, "args": [str(folder)]}
        agent = Agent(zygote, job, folder, every_steps=1, on_message=tell_figures)
        if folder.name == "killed":
            for step in (3, 6, 11):
                agent.on_message = kill_at(step)
                assert agent.attempt() == "killed", agent.log.read_text()[-3000:]
            agent.on_message = tell_figures
        assert agent.attempt() == "finished", agent.log.read_text()[-3000:]
        found.append(left(folder))
    assert found[0] == found[1]
    rows = json.loads(found[1]["history.json"])
    assert [row["step"] for row in rows] == list(range(16))
    assert {name for row in rows for name in row} == {"step", "epoch", "loss"}, "none of what spotrun itself logs"
    assert json.loads(found[1]["logs/lightning_logs/best.json"])[1] == ["epoch", "loss"]
    assert found[1]["steps"] == "16"
    named = {place: what for message in agent.told(NotCarried) for place, what in message.places}
    assert named == {
        "loggers[3].waiting": "_queue.SimpleQueue",
        "loggers[4]": "a own_loggers.History that was added during training",
    }
