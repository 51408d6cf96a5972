"""
Fabric: a model, an optimizer and loaders that it has set up, a logger that keeps its lines in memory, and one of the
script's own class, which Fabric alone holds.
"""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger, Logger
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, job, loss_of, network, tick


class History(Logger):
    name, version = "history", 0

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}

    def log_hyperparams(self, *args: object, **options: object) -> None:
        """It logs metrics alone."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.rows.setdefault(name, []).append(value)


def main() -> None:
    logger = CSVLogger(Path(job["result"]).parent / "logs")
    fabric = Fabric(accelerator="cpu", devices=1, loggers=[logger, History()])
    fabric.seed_everything(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    model, optimizer = fabric.setup(model, optimizer)
    train, val = fabric.setup_dataloaders(DataLoader(Noisy(), 5, shuffle=True), DataLoader(Noisy(12), 4))
    loop = Loop(fabric, seed=12, model=model, optimizer=optimizer)
    s = loop.state(losses=[])
    for _ in loop.epochs(3):
        model.train()
        for i, x in loop.enumerate(train):
            loss = loss_of(model, x)
            fabric.backward(loss)
            tick()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
            s.losses.append(loss.item())
            fabric.log("loss", loss.item(), step=len(s.losses))
            tick()
        model.eval()
        with torch.no_grad():
            s.losses.append(sum(loss_of(model, x).item() for x in loop.validation(val)))
        tick()
    logger.finalize("success")
    lines = (Path(logger.root_dir) / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    done(model=model, optimizer=optimizer, losses=s.losses, logged=lines, history=fabric.loggers[1].rows)


main()
