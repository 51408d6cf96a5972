"""
Each epoch has a folder of its own, and a link leads to the newest one, which the next epoch reads.

Stands for: scripts that keep `latest` as a link, and ModelCheckpoint with `save_last="link"`.
"""

import os
import shutil

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LATEST = "latest"


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


class Folders(pl.Callback):
    def on_train_epoch_start(self, trainer, module) -> None:
        if trainer.current_epoch:
            before = torch.load(os.path.join(LATEST, "model.pt"), weights_only=True)
            with torch.no_grad():
                for name, weight in module.named_parameters():
                    weight.lerp_(before[name], 0.1)

    def on_train_epoch_end(self, trainer, module) -> None:
        folder = f"epochs/{trainer.current_epoch}"
        os.makedirs(folder)
        torch.save(module.state_dict(), f"{folder}/model.pt")
        if os.path.islink(LATEST):
            os.unlink(LATEST)
        os.symlink(folder, LATEST)
        shutil.rmtree(f"epochs/{trainer.current_epoch - 2}", ignore_errors=True)


def main() -> None:
    pl.seed_everything(211)
    x = torch.randn(100, 8)
    data = TensorDataset(x, x[:, :1].sin() + 0.3 * x[:, 1:2])
    held_out = DataLoader(data, 50)
    saving = pl.callbacks.ModelCheckpoint("kept", monitor="val_loss", save_top_k=2, save_last="link")
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", callbacks=[Folders(), saving], logger=False)
    model = Regression()
    trainer.fit(model, DataLoader(data, 10, shuffle=True), held_out)
    trainer.test(model, held_out, ckpt_path="kept/last.ckpt", weights_only=False)


if __name__ == "__main__":
    main()
