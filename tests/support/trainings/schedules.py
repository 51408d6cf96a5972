"""What `configure_optimizers` gives, by the name of a schedule."""

from __future__ import annotations

from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)


def two_optimizers(module, job):
    parameters = list(module.parameters())
    optimizers = [AdamW(parameters[:2], lr=0.01), SGD(parameters[2:], 0.1, 0.9)]
    return optimizers, [StepLR(optimizer, 1, 0.5) for optimizer in optimizers]


def warmup(module, job):
    """Two groups of parameters with a rate each, and one schedule after another."""
    biases = [p for p in module.parameters() if p.ndim == 1]
    weights = [p for p in module.parameters() if p.ndim > 1]
    optimizer = AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0, "lr": 0.02}], lr=0.01)
    rising = LambdaLR(optimizer, lambda step: (step + 1) / 5)
    schedule = SequentialLR(optimizer, [rising, CosineAnnealingLR(optimizer, 19)], [5])
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def one_cycle(module, job):
    """Reads how many steps there will be."""
    optimizer = AdamW(module.parameters(), lr=0.01)
    schedule = OneCycleLR(optimizer, 0.05, total_steps=int(module.trainer.estimated_stepping_batches))
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def by_epoch(module, job):
    optimizer = AdamW(module.parameters(), lr=0.01)
    return [optimizer], [MultiStepLR(optimizer, [1, 2], 0.5)]


def plateau(module, job):
    optimizer = AdamW(module.parameters(), lr=0.01)
    config = {
        "scheduler": ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
        "monitor": job.get("monitor", "val_loss"),
        "interval": job.get("interval", "epoch"),
        "strict": False,
    }
    return {"optimizer": optimizer, "lr_scheduler": config}


SCHEDULES = {
    "onecycle": one_cycle,
    "epoch": by_epoch,
    "plateau": plateau,
    "warmup": warmup,
    "two optimizers": two_optimizers,
}
