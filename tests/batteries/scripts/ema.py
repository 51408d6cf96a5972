"""
An exponential average of the weights in a callback of the script, swapped in for each validation.

Stands for: image classification and diffusion repositories with an EMA callback of their own.
"""

import copy

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA(pl.Callback):
    def __init__(self, decay: float = 0.9, start_after: int = 5) -> None:
        self.decay = decay
        self.start_after = start_after
        self.average = None
        self.held = None
        self.updates = 0

    def on_fit_start(self, trainer, module):
        if self.average is None:
            self.average = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step < self.start_after:
            return
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in module.state_dict().items():
            if value.dtype.is_floating_point:
                self.average[name].mul_(decay).add_(value, alpha=1 - decay)
            else:
                self.average[name].copy_(value)

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            self.held = copy.deepcopy(module.state_dict())
            module.load_state_dict(self.average)

    def on_validation_end(self, trainer, module):
        if self.held is not None:
            module.load_state_dict(self.held)
            self.held = None


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
        self.net(torch.zeros(2, 1, 16))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def main() -> None:
    pl.seed_everything(3)
    x = torch.randn(128, 1, 16)
    y = x[:, 0, :9].view(128, 3, 3).sum(2).argmax(1)
    ema = EMA()
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, callbacks=[ema])
    model = Net()
    trainer.fit(model, DataLoader(TensorDataset(x, y), 16, shuffle=True), DataLoader(TensorDataset(x[:32], y[:32]), 32))
    torch.save(ema.average, "ema.pt")
    model.load_state_dict(ema.average)
    trainer.validate(model, DataLoader(TensorDataset(x[:32], y[:32]), 32))


if __name__ == "__main__":
    main()
