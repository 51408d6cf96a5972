"""
Lightning's ManualOptimBoringModel, unchanged.

Stands for: Lightning's own example of manual optimization in `pytorch_lightning.demos.boring_classes`.
"""

from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import ManualOptimBoringModel

if __name__ == "__main__":
    Trainer(max_epochs=2, accelerator="cpu", limit_train_batches=20, limit_val_batches=8).fit(ManualOptimBoringModel())
