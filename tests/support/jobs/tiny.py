"""An ordinary Lightning script, random enough to show any inexactness: dropout, augmentation, momentum, a schedule."""

from __future__ import annotations

import argparse
import os
import random
import time

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Points on a line, each read with fresh noise from all three generators that people use."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        x_F = torch.full((64,), index / self.size) + 0.1 * torch.randn(64) + 0.01 * random.random()
        return index, x_F, torch.tensor([index / self.size])


class Net(pl.LightningModule):
    """`trained`: the steps of this process. What each has for itself in a checkpoint says so of which step it is."""

    def __init__(self, width: int, step_s: float, frozen: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width))
        self.head = nn.Linear(width, 1)
        self.step_s = step_s
        self.trained = 0
        self.layers[3].requires_grad_(not frozen)

    def training_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> torch.Tensor:
        index_B, x_BF, y_B1 = batch
        if not os.path.exists(f"{os.environ.get('TRACE')}.hurry"):  # a test has seen all that it waited for
            time.sleep(self.step_s)
        loss = nn.functional.mse_loss(self.head(self.layers(x_BF)), y_B1)
        self._trace(f"{self.trainer.global_step} {self.current_epoch} {sorted(index_B.tolist())} {loss.item()!r}")
        self.trained = self.trainer.global_step + 1
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> None:
        _, x_BF, y_B1 = batch
        self.log("val_loss", nn.functional.mse_loss(self.head(self.layers(x_BF)), y_B1))

    def _trace(self, line: str) -> None:
        """Append to a file outside of the instance, in one write: the tests' own record of what was trained."""
        if "TRACE" not in os.environ:
            return
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        with open(os.environ["TRACE"], "a") as file:
            file.write(f"{line} lr={rate!r}\n")

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=800)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--step-s", type=float, default=0.03)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--fail-on-rank", type=int, default=-1, help="in the fourth step")
    parser.add_argument("--num-nodes", type=int, help="of a gang; spotrun says it where this does not")
    parser.add_argument("--devices", type=int, default=1, help="processes of each node")
    parser.add_argument("--keep", action="store_true", help="the best checkpoint, in the work folder")
    parser.add_argument("--frozen", action="store_true", help="most of the model stays as it is")
    args = parser.parse_args()
    pl.seed_everything(7, verbose=False)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    train = DataLoader(Noisy(args.samples), batch_size=8, shuffle=True, num_workers=args.workers)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=args.devices,
        logger=False,
        enable_checkpointing=args.keep,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[
            FailAt(args.fail_at) if args.fail_at >= 0 else FailAt(3, args.fail_on_rank),
            *([ModelCheckpoint("kept", monitor="val_loss", save_top_k=2, save_last=True)] if args.keep else []),
        ],
        **({} if args.num_nodes is None else {"num_nodes": args.num_nodes}),
    )
    trainer.fit(Net(args.width, args.step_s, args.frozen), train, DataLoader(Noisy(16), batch_size=8))
    print("trained", trainer.global_step, "steps")


class FailAt(pl.Callback):
    """On that rank alone, if one is given; on none if that is -1."""

    def __init__(self, step: int, rank: int | None = None) -> None:
        self.step = step
        self.rank = rank

    def on_train_batch_start(self, trainer: pl.Trainer, *_: object) -> None:
        if trainer.global_step == self.step and self.rank in (None, trainer.global_rank):
            raise RuntimeError(f"planted failure at step {self.step}")


if __name__ == "__main__":
    main()
