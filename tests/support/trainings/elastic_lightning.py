"""
An elastic training with Lightning: `python elastic_lightning.py JOB`, on as many processes as `ranks` says.

The job's `variant` names what the training has besides BatchNorm, dropout, momentum, clipping, a schedule, validation,
logged values and a short last batch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, SumMetric

from spotrun.trainer_link import VIRTUAL_RANKS
from tests.support.trainings.loop_scripts.world import Noisy, done, job, loss_of, network, tick

VARIANT = job["variant"]
os.environ[VIRTUAL_RANKS] = str(job["virtual_ranks"])
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net: Any = None
        self.metric, self.count = MeanMetric(), SumMetric()
        self.outputs: list[torch.Tensor] = []
        self.seen: list[float] = []

    def configure_model(self):
        self.net = network() if self.net is None else self.net

    def training_step(self, batch, batch_idx):
        tick()
        loss = loss_of(self.net, batch)
        self.log("own", loss, on_step=True, on_epoch=True)
        self.log("all", loss, on_step=True, on_epoch=True, sync_dist=True)
        if VARIANT == "metric":
            self.metric.update(loss)
        if VARIANT == "uneven" and batch[0, 0] > 0:
            self.log("some", loss)
        if VARIANT == "collective":
            self.all_gather(loss)
        return {"loss": loss, "mean": batch.mean()} if VARIANT == "hooks" else loss

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch + 0.1 * torch.rand(1) if VARIANT == "hooks" and self.training else batch

    def on_before_optimizer_step(self, optimizer):
        first = next(self.parameters())
        self.seen.append(float(first.grad.norm()))
        first.grad += torch.rand(1) * 1e-3  # noise that all processes draw alike

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.outputs.append(outputs["loss"].detach())
        tick()

    def on_train_epoch_end(self):
        self.log("mean_output", torch.stack(self.outputs).mean(), sync_dist=True)
        self.outputs.clear()

    def validation_step(self, batch, batch_idx):
        loss = loss_of(self.net, batch + torch.rand(1))
        self.metric.update(loss)
        self.log("val", loss, sync_dist=True)
        self.log("metric", self.metric)
        self.count.update(len(batch))

    def on_validation_epoch_end(self):
        self.log("count", self.count.compute())
        self.count.reset()

    def configure_optimizers(self):
        kind = torch.optim.AdamW if VARIANT == "scaled" else torch.optim.SGD
        more = {} if VARIANT == "scaled" else {"momentum": 0.9}
        optimizer = kind(self.parameters(), 0.02, **more)
        if VARIANT == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            return [optimizer], [{"scheduler": schedule, "monitor": "mean_output"}]
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    pl.seed_everything(1)
    torch.rand(3)  # Lightning seeds the generators again before it makes the model with DDP only
    model = Net()
    options = {"accumulate_grad_batches": 2} if VARIANT == "accumulated" else {}
    if VARIANT == "scaled":
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**124, growth_interval=3)
        plugin = pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)
        plugin.autocast_context_manager = lambda: torch.autocast("cpu", torch.bfloat16)
        options["plugins"] = [plugin]
    workers = {"num_workers": 2} if VARIANT == "workers" else {}
    train = DataLoader(Noisy(66), 6, shuffle=True, **workers)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=job["ranks"],
        strategy="ddp" if job["ranks"] > 1 else "auto",
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        val_check_interval=2,
        logger=pl.loggers.CSVLogger(Path(job["result"]).parent / "logs") if rank == 0 else False,
        **QUIET,
        **options,
    )
    trainer.fit(model, train, DataLoader(Noisy(11), 4))
    if rank == 0:
        metrics = {name: float(value).hex() for name, value in trainer.callback_metrics.items()}
        rows = [path.read_text() for path in Path(job["result"]).parent.glob("logs/**/metrics.csv")]
        done(model=model, optimizer=trainer.optimizers[0], seen=model.seen, metrics=metrics, rows=rows)


main()
