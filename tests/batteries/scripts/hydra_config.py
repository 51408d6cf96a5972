"""
A configuration of OmegaConf, from which everything is made by the names of classes; the module saves it whole.

Stands for: templates that use Hydra (`save_hyperparameters(cfg)`, `_target_` with instantiate).
"""

import importlib

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = """
seed: 43
width: 16
model:
  layers: [8, "${width}", 1]
  act: {_target_: torch.nn.ELU, alpha: 0.9}
optimizer: {_target_: torch.optim.RAdam, lr: 0.01, betas: [0.9, 0.98]}
scheduler: {_target_: torch.optim.lr_scheduler.LinearLR, start_factor: 0.1, total_iters: 20}
callbacks:
  - {_target_: pytorch_lightning.callbacks.ModelCheckpoint, dirpath: checkpoints, save_last: true, monitor: val_loss}
  - {_target_: pytorch_lightning.callbacks.LearningRateMonitor, logging_interval: step}
trainer: {max_epochs: 4, accelerator: cpu, gradient_clip_val: 0.5, log_every_n_steps: 5}
"""


def instantiate(config, *args):
    module, _, name = config["_target_"].rpartition(".")
    words = {key: value for key, value in OmegaConf.to_container(config, resolve=True).items() if key != "_target_"}
    return getattr(importlib.import_module(module), name)(*args, **words)


class Model(pl.LightningModule):
    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self.save_hyperparameters(cfg)
        self.cfg = cfg
        first, hidden, last = cfg.model.layers
        self.net = nn.Sequential(nn.Linear(first, hidden), instantiate(cfg.model.act), nn.Linear(hidden, last))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = instantiate(self.cfg.optimizer, self.parameters())
        return [optimizer], [{"scheduler": instantiate(self.cfg.scheduler, optimizer), "interval": "step"}]


def main() -> None:
    cfg = OmegaConf.create(CONFIG)
    pl.seed_everything(cfg.seed)
    OmegaConf.save(cfg, "config.yaml")
    x = torch.randn(96, 8)
    data = TensorDataset(x, x.abs().mean(1, keepdim=True))
    trainer = pl.Trainer(**cfg.trainer, callbacks=[instantiate(each) for each in cfg.callbacks])
    trainer.fit(Model(cfg), DataLoader(data, 8, shuffle=True), DataLoader(data, 48))


if __name__ == "__main__":
    main()
