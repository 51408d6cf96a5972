"""Fabric with a `Loop`: Fabric places and wraps, `Loop` makes it exactly resumable."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spotrun import Loop


def main() -> None:
    fabric = Fabric(devices=1)
    fabric.seed_everything(1)
    x = torch.randn(50_000, 8)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), 3e-3))
    train = fabric.setup_dataloaders(DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), 32, shuffle=True))
    loop = Loop(fabric, seed=1, model=model, optimizer=optimizer)
    s = loop.state(total=0.0)
    for epoch in loop.epochs(8):
        s.total = 0.0
        for x, y in loop.batches(train):
            loss = nn.functional.mse_loss(model(x), y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            s.total += loss.item()
        loop.log(loss=s.total / len(train))
        print(f"epoch {epoch}: loss {s.total / len(train):.4f}")
    fabric.save("model.ckpt", {"model": model})


if __name__ == "__main__":
    main()
