"""
ResNet-50 on handwritten digits: an ordinary Lightning script, which does not know spotrun.

    python examples/resnet50.py                     # alone, on this machine
    spotrun launch examples/resnet50.yaml           # the same script, unchanged, through interruptions

`make demo` installs what it needs: spotrun's extra `examples`, which is PyTorch, Lightning and scikit-learn.

The network is that of He et al. 2015 (https://arxiv.org/abs/1512.03385) in full: 50 layers with weights, 23.5 million
parameters. The images are the 1,797 digits that scikit-learn ships, scanned from the forms of 43 writers and enlarged,
so nothing is downloaded.

Letters in names: B batch, C channels, H height, W width, K classes, N images; x_BCHW is a batch of images.
"""

from __future__ import annotations

import argparse
import math
import warnings

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

# --- the network -----------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """Squeeze (1×1), look around (3×3), widen (1×1), and add the input."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * self.expansion
        self.squeeze = nn.Conv2d(channels_in, width, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(width)
        self.look = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm_2 = nn.BatchNorm2d(width)
        self.widen = nn.Conv2d(width, channels_out, 1, bias=False)
        self.norm_3 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False), nn.BatchNorm2d(channels_out)
            )
        # Each block begins as its shortcut and learns what to add, which lets the learning rate be high from the start
        # (Goyal et al. 2017, https://arxiv.org/abs/1706.02677, section 5.1).
        nn.init.zeros_(self.norm_3.weight)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = F.relu(self.norm_1(self.squeeze(x_BCHW)))
        y_BCHW = F.relu(self.norm_2(self.look(y_BCHW)))
        y_BCHW = self.norm_3(self.widen(y_BCHW))
        return F.relu(y_BCHW + self.shortcut(x_BCHW))


class ResNet50(nn.Module):
    """
    Maps x_BCHW, three channels of at least 32×32 pixels, to logits_BK. Layers have `width` times the paper's channels.
    """

    stages = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride of the first block

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = int(64 * width)
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        for depth, full, stride in self.stages:
            for place in range(depth):
                blocks.append(Bottleneck(channels, int(full * width), stride if place == 0 else 1))
                channels = int(full * width) * Bottleneck.expansion
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.blocks(self.stem(x_BCHW))
        x_BC = x_BCHW.mean(dim=(2, 3))
        logits_BK: Tensor = self.classify(x_BC)
        return logits_BK


# --- the images ------------------------------------------------------------------------------------------------------


def load_images(size: int) -> tuple[Tensor, Tensor]:
    """Return all digits as (images_NCHW with values from 0 to 1, label_N), enlarged from 8×8 to size×size pixels."""
    digits = load_digits()
    grey_NHW = torch.as_tensor(digits.images, dtype=torch.float32) / 16
    grey_NCHW = F.interpolate(grey_NHW[:, None], size=(size, size), mode="bilinear", align_corners=False)
    return grey_NCHW.expand(-1, 3, -1, -1), torch.as_tensor(digits.target)


def augment(image_CHW: Tensor) -> Tensor:
    """Return the same digit as if written by another hand: turned by up to 15°, moved, and with a patch missing."""
    turn, right, down = (torch.rand(3) * 2 - 1).tolist()
    angle = math.radians(15) * turn
    cos, sin = math.cos(angle), math.sin(angle)
    placement = torch.tensor([[[cos, -sin, 0.2 * right], [sin, cos, 0.2 * down]]])
    grid = F.affine_grid(placement, [1, *image_CHW.shape], align_corners=False)
    moved_CHW = F.grid_sample(image_CHW[None], grid, align_corners=False)[0]

    height, width = image_CHW.shape[1:]
    top, left = int(torch.randint(height, ())), int(torch.randint(width, ()))
    moved_CHW[:, top : top + height // 6, left : left + width // 6] = 0
    return moved_CHW


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """(image_CHW, label) pairs with mean 0 and deviation 1; training images differ each time they are drawn."""

    mean, deviation = 0.305, 0.324

    def __init__(self, images_NCHW: Tensor, label_N: Tensor, *, training: bool) -> None:
        self.images_NCHW = images_NCHW
        self.label_N = label_N
        self.training = training

    def __len__(self) -> int:
        return len(self.label_N)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image_CHW = self.images_NCHW[index]
        if self.training:
            image_CHW = augment(image_CHW)
        return (image_CHW - self.mean) / self.deviation, self.label_N[index]


def make_loaders(image_size: int, batch_size: int, workers: int) -> tuple[DataLoader, DataLoader]:
    """1,497 shuffled images for training, and 300 others for validation; the split is the same for every seed."""
    images_NCHW, label_N = load_images(image_size)
    order_N = torch.randperm(len(label_N), generator=torch.Generator().manual_seed(0))
    validated, learned = order_N[:300], order_N[300:]
    train_set = Digits(images_NCHW[learned], label_N[learned], training=True)
    val_set = Digits(images_NCHW[validated], label_N[validated], training=False)
    return (
        DataLoader(train_set, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0),
        DataLoader(val_set, batch_size=100, num_workers=workers, persistent_workers=workers > 0),
    )


# --- the training ----------------------------------------------------------------------------------------------------


class DigitClassifier(pl.LightningModule):
    def __init__(self, lr: float, width: float = 1.0) -> None:
        super().__init__()
        self.lr = lr
        self.network = ResNet50(classes=10, width=width)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x_BCHW, label_B = batch
        loss = F.cross_entropy(self.network(x_BCHW), label_B)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x_BCHW, label_B = batch
        logits_BK = self.network(x_BCHW)
        self.log("val_loss", F.cross_entropy(logits_BK, label_B), batch_size=len(label_B))
        accuracy = (logits_BK.argmax(dim=1) == label_B).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(label_B), prog_bar=True)

    def configure_optimizers(self) -> pl.utilities.types.OptimizerLRScheduler:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train ResNet-50 on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=32, help="pixels; 32 to 48 are sensible (default: 32)")
    parser.add_argument("--lr", type=float, default=0.05, help="the highest learning rate of the schedule")
    parser.add_argument("--width", type=float, default=1.0, help="times the channels of the paper, at least 1/64")
    parser.add_argument("--precision", default="32-true", help="as Lightning names it: 32-true, bf16-mixed, 16-mixed")
    parser.add_argument("--deterministic", action="store_true", help="the same bits each time, on a GPU too")
    parser.add_argument("--devices", type=int, default=1, help="how many train together, each with batches of its own")
    parser.add_argument("--workers", type=int, default=0, help="processes that load images for the trainer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE", help="write a Lightning checkpoint here at the end")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # two cores are busy enough
    pl.seed_everything(args.seed, workers=True)

    train_loader, val_loader = make_loaders(args.image_size, args.batch_size, args.workers)
    model = DigitClassifier(lr=args.lr, width=args.width)
    print(f"ResNet-50 with {sum(p.numel() for p in model.parameters()):,} parameters")

    trainer = pl.Trainer(
        max_epochs=args.epochs,
        precision=args.precision,
        deterministic="warn" if args.deterministic else None,
        devices=args.devices,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(model, train_loader, val_loader)
    (result,) = trainer.validate(model, val_loader, verbose=False)
    print(f"validation accuracy after {args.epochs} epochs: {result['val_accuracy']:.1%}")
    if args.save:
        trainer.save_checkpoint(args.save)


if __name__ == "__main__":
    main()
