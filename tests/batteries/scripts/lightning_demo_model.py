"""
Lightning's DemoModel, unchanged, from the package `lightning`.

Stands for: Lightning's own example in `lightning.pytorch.demos.boring_classes`.
"""

from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import DemoModel, RandomDataset
from torch.utils.data import DataLoader

if __name__ == "__main__":
    Trainer(max_epochs=3, accelerator="cpu").fit(DemoModel(), DataLoader(RandomDataset(32, 64), 4, shuffle=True))
