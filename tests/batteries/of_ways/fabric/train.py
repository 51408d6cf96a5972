"""
A loop of one's own on Fabric, with clipped gradients, a logger, callbacks that Fabric calls, and the best model.

Stands for: repositories on Fabric, such as LitGPT.
"""

import json
from pathlib import Path

import torch
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from spotrun import Loop

EPOCHS, BATCH = 4, 10


class KeepsBest:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.best = float("inf")

    def on_validation_end(self, fabric, state, loss):
        if loss < self.best:
            self.best = loss
            fabric.save(self.folder / "best.ckpt", state)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.GRU(6, 20, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.tell = nn.Linear(20, 3)

    def forward(self, x):
        return self.tell(self.drop(self.read(x)[0]))


def main():
    keeps_best = KeepsBest("out")
    fabric = Fabric(accelerator="cpu", devices=1, loggers=CSVLogger("logs"), callbacks=[keeps_best])
    fabric.launch()
    seed_everything(11)
    x = torch.randn(170, 7, 6)
    data = TensorDataset(x, (x.sum(2).cumsum(1) > 0).long() + (x[:, :, 0] > 1).long())
    train, val = random_split(data, [120, 50])
    model = Tagger()
    optimizer = torch.optim.RAdam(model.parameters(), 0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.03, total_steps=EPOCHS * len(train) // BATCH)
    model, optimizer = fabric.setup(model, optimizer)
    train = fabric.setup_dataloaders(DataLoader(train, BATCH, shuffle=True))
    val = fabric.setup_dataloaders(DataLoader(val, 25))
    loop = Loop(fabric, seed=11, model=model, optimizer=optimizer, scheduler=scheduler, keeps_best=keeps_best)
    s = loop.state(step=0, history=[])
    for epoch in loop.epochs(EPOCHS):
        model.train()
        for i, (x, y) in loop.enumerate(train):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            s.step += 1
            if i % 4 == 0:
                fabric.log_dict({"loss": loss.item(), "lr": scheduler.get_last_lr()[0]}, step=s.step)
        model.eval()
        with torch.no_grad():
            losses = [nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in loop.validation(val)]
        val_loss = float(torch.stack(losses).mean())
        s.history.append(val_loss)
        fabric.log("val_loss", val_loss, step=s.step)
        loop.log(val_loss=val_loss)
        fabric.call("on_validation_end", fabric, {"model": model, "optimizer": optimizer, "epoch": epoch}, val_loss)
    fabric.logger.finalize("success")
    fabric.save("out/last.ckpt", {"model": model, "optimizer": optimizer, "scheduler": scheduler})
    Path("out/result.json").write_text(json.dumps({"best": keeps_best.best, "history": s.history}))


if __name__ == "__main__":
    main()
