"""
The best weights by `torch.save` of the script, loaded again when the rate is cut, and at the end for predictions.

Stands for: scripts that came to Lightning from a loop of their own.
"""

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Dropout(0.25), nn.Linear(14, 1))
        self.best_loss = np.inf
        self.bad_epochs = 0
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.losses.append(nn.functional.mse_loss(self.net(x), y).item())

    def on_validation_epoch_end(self):
        loss = np.mean(self.losses)
        self.losses = []
        if self.trainer.sanity_checking:
            return
        if loss < self.best_loss:
            self.best_loss, self.bad_epochs = loss, 0
            torch.save({"net": self.net.state_dict(), "loss": self.best_loss, "epoch": self.current_epoch}, "best.pt")
            return
        self.bad_epochs += 1
        if self.bad_epochs == 2:
            self.bad_epochs = 0
            self.net.load_state_dict(torch.load("best.pt", weights_only=False)["net"])
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] *= 0.5

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    pl.seed_everything(83)
    x = torch.randn(120, 7)
    y = x[:, :1].square() + 0.5 * torch.randn(120, 1)
    train, val = TensorDataset(x[:80], y[:80]), DataLoader(TensorDataset(x[80:], y[80:]), 20)
    trainer = pl.Trainer(max_epochs=7, accelerator="cpu", logger=False, enable_checkpointing=False)
    model = Net()
    trainer.fit(model, DataLoader(train, 10, shuffle=True), val)
    model.net.load_state_dict(torch.load("best.pt", weights_only=False)["net"])
    np.save("predictions.npy", torch.cat(trainer.predict(model, val)).numpy())


if __name__ == "__main__":
    main()
