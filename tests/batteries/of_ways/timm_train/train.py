"""
An image classifier in the manner of timm's `train.py`: arguments in words or in a file of YAML, a schedule that warms
up and then falls as a cosine, mixup with soft targets, an average of the weights that is validated too, the best few
checkpoints in files, and a line for each epoch in `summary.csv`.

Stands for: train.py of timm, and of repositories that grew out of it.
"""

import argparse
import csv
import json
import math
import os

import numpy as np
import torch
import yaml
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from spotrun import Loop

config_parser = argparse.ArgumentParser(add_help=False)
config_parser.add_argument("-c", "--config", default="")
parser = argparse.ArgumentParser(parents=[config_parser])
parser.add_argument("--output", default="output")
parser.add_argument("--experiment", default="train")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--warmup-epochs", type=int, default=1)
parser.add_argument("--warmup-lr", type=float, default=1e-4)
parser.add_argument("--lr", type=float, default=5e-3)
parser.add_argument("--min-lr", type=float, default=1e-5)
parser.add_argument("-b", "--batch-size", type=int, default=8)
parser.add_argument("--weight-decay", type=float, default=0.05)
parser.add_argument("--clip-grad", type=float, default=1.0)
parser.add_argument("--mixup", type=float, default=0.0)
parser.add_argument("--mixup-off-epoch", type=int, default=0)
parser.add_argument("--smoothing", type=float, default=0.1)
parser.add_argument("--model-ema", action="store_true")
parser.add_argument("--model-ema-decay", type=float, default=0.9)
parser.add_argument("--checkpoint-hist", type=int, default=2)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--seed", type=int, default=42)

CLASSES, SIDE, TRAIN, VALIDATION = 4, 8, 96, 48


def parse_args():
    first, rest = config_parser.parse_known_args()
    if first.config:
        with open(first.config) as file:
            parser.set_defaults(**yaml.safe_load(file))
    return parser.parse_args(rest)


class Images(Dataset):
    """Stripes of four directions, which are flipped and shifted as they are read."""

    def __init__(self, count, augment):
        self.labels = torch.arange(count) % CLASSES
        self.noise = torch.randn(count, SIDE, SIDE, generator=torch.Generator().manual_seed(count))
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = int(self.labels[index])
        y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        image = torch.sin((x, y, x + y, x - y)[label] * 1.3) + 0.5 * self.noise[index]
        if self.augment:
            image = torch.roll(image, int(torch.randint(SIDE, ())), 0)
            image = image * float(np.random.uniform(0.8, 1.2))
        return image[None], label


def create_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(12, CLASSES),
    )  # fmt: skip


class Mixup:
    """Two images in one, and both of their labels."""

    def __init__(self, alpha, smoothing):
        self.alpha, self.smoothing, self.enabled = alpha, smoothing, alpha > 0

    def __call__(self, x, target):
        low = self.smoothing / CLASSES
        soft = nn.functional.one_hot(target, CLASSES) * (1 - self.smoothing) + low
        if not self.enabled:
            return x, soft
        share = float(np.random.beta(self.alpha, self.alpha))
        return x * share + x.flip(0) * (1 - share), soft * share + soft.flip(0) * (1 - share)


class CosineWarmup:
    """By the number of updates."""

    def __init__(self, optimizer, args, updates_per_epoch):
        self.optimizer, self.args, self.last = optimizer, args, 0
        self.warmup = args.warmup_epochs * updates_per_epoch
        self.total = args.epochs * updates_per_epoch
        self.step_update(0)

    def rate(self, update):
        if update < self.warmup:
            return self.args.warmup_lr + update * (self.args.lr - self.args.warmup_lr) / self.warmup
        gone = (update - self.warmup) / max(1, self.total - self.warmup)
        return self.args.min_lr + 0.5 * (self.args.lr - self.args.min_lr) * (1 + math.cos(math.pi * gone))

    def step_update(self, update):
        self.last = self.rate(update)
        for group in self.optimizer.param_groups:
            group["lr"] = self.last


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


class CheckpointSaver:
    """Keeps the files of the best epochs, the last one, and a link to the best."""

    def __init__(self, folder, model, ema, optimizer, hist):
        self.folder, self.model, self.ema, self.optimizer, self.hist = folder, model, ema, optimizer, hist
        self.files = []
        self.best = None

    def save_checkpoint(self, epoch, metric):
        state = {"epoch": epoch, "metric": metric, "state_dict": self.model.state_dict()}
        state |= {"optimizer": self.optimizer.state_dict(), "state_dict_ema": self.ema and self.ema.state_dict()}
        path = os.path.join(self.folder, f"checkpoint-{epoch}.pth.tar")
        last = os.path.join(self.folder, "last.pth.tar")
        torch.save(state, last + ".tmp")
        os.replace(last + ".tmp", last)
        if len(self.files) < self.hist or metric > self.files[-1][1]:
            torch.save(state, path)
            self.files = sorted([*self.files, (path, metric)], key=lambda each: -each[1])
            for old, _ in self.files[self.hist :]:
                os.remove(old)
            self.files = self.files[: self.hist]
            if self.best is None or metric > self.best[0]:
                self.best = metric, epoch
                torch.save(state, os.path.join(self.folder, "model_best.pth.tar"))
        return self.best


def train_one_epoch(epoch, model, ema, loader, loss_fn, optimizer, scheduler, mixup, args, loop):
    """The meter is in `loop.state`, as a resume within the epoch goes on with it."""
    s = loop.state(losses=AverageMeter())
    updates = epoch * len(loader)
    if args.mixup_off_epoch and epoch >= args.mixup_off_epoch:
        mixup.enabled = False
    model.train()
    for batch_idx, (x, target) in loop.enumerate(loader):
        x, target = mixup(x, target)
        loss = loss_fn(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        if ema is not None:
            ema.update_parameters(model)
        s.losses.update(loss.item(), len(x))
        scheduler.step_update(updates + batch_idx + 1)
    return {"loss": s.losses.avg}


@torch.no_grad()
def validate(model, loader, loop):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    for x, target in loop.validation(loader):
        output = model(x)
        losses.update(nn.functional.cross_entropy(output, target).item(), len(x))
        top1.update(100.0 * (output.argmax(1) == target).float().mean().item(), len(x))
    return {"loss": losses.avg, "top1": top1.avg}


def update_summary(epoch, train, evaluation, path, rate, write_header):
    row = {"epoch": epoch, **{f"train_{k}": v for k, v in train.items()}}
    row |= {f"eval_{k}": v for k, v in evaluation.items()} | {"lr": rate}
    with open(path, "a") as file:
        writer = csv.DictWriter(file, row)
        if write_header:
            writer.writeheader()
        writer.writerow(row)


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    model = create_model()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.model_ema_decay)) if args.model_ema else None
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=args.weight_decay)
    loader_train = DataLoader(
        Images(TRAIN, True), args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers
    )
    loader_eval = DataLoader(Images(VALIDATION, False), 2 * args.batch_size)
    scheduler = CosineWarmup(optimizer, args, len(loader_train))
    mixup = Mixup(args.mixup, args.smoothing)
    folder = os.path.join(args.output, args.experiment)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "args.yaml"), "w") as file:
        yaml.safe_dump(vars(args), file)
    saver = CheckpointSaver(folder, model, ema, optimizer, args.checkpoint_hist)
    averages = {} if ema is None else {"ema": ema}
    loop = Loop(
        seed=args.seed, model=model, optimizer=optimizer, scheduler=scheduler, mixup=mixup, saver=saver, **averages
    )
    s = loop.state(results=[], best=None)
    for epoch in loop.epochs(args.epochs):
        train = train_one_epoch(
            epoch, model, ema, loader_train, nn.CrossEntropyLoss(), optimizer, scheduler, mixup, args, loop
        )
        evaluation = validate(model, loader_eval, loop)
        if ema is not None:
            evaluation |= {f"{k}_ema": v for k, v in validate(ema, loader_eval, loop).items()}
        update_summary(epoch, train, evaluation, os.path.join(folder, "summary.csv"), scheduler.last, epoch == 0)
        s.best = saver.save_checkpoint(epoch, evaluation.get("top1_ema", evaluation["top1"]))
        s.results.append({"epoch": epoch, "train": train, "validation": evaluation})
        loop.log(**evaluation)
    print(f"*** Best metric: {s.best[0]} (epoch {s.best[1]})")
    with open(os.path.join(folder, "results.json"), "w") as file:
        json.dump({"best": s.best, "all": s.results, "kept": [path for path, _ in saver.files]}, file)


if __name__ == "__main__":
    main()
