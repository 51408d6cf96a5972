"""
The size of the images changes every five batches, and the strong augmentation ends before the last epochs.

Stands for: object detection repositories after YOLOX.
"""

import random

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self) -> None:
        self.images = torch.rand(80, 3, 16, 16, generator=torch.Generator().manual_seed(9))
        self.mosaic = True

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.mosaic:
            others = random.choices(range(len(self)), k=3)
            quarters = [self.images[each][:, ::2, ::2] for each in (index, *others)]
            image = torch.cat([torch.cat(quarters[:2], 2), torch.cat(quarters[2:], 2)], 1)
        return image, image.mean((1, 2))


class CloseMosaic(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch >= trainer.max_epochs - 2:
            trainer.train_dataloader.dataset.mosaic = False
            module.extra_loss = True


class Detector(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(1))
        self.head = nn.Linear(8, 3)
        self.input_size = 16
        self.extra_loss = False
        self.sizes = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        if self.global_step % 5 == 0:
            self.input_size = random.randrange(8, 25, 4)
        self.sizes.append(self.input_size)
        x = nn.functional.interpolate(x, (self.input_size, self.input_size), mode="bilinear")
        found = self.head(self.net(x).flatten(1))
        loss = nn.functional.mse_loss(found, y)
        return loss + nn.functional.l1_loss(found, y) if self.extra_loss else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9, nesterov=True)


def main() -> None:
    pl.seed_everything(113)
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, callbacks=[CloseMosaic()])
    trainer.fit(Detector(), DataLoader(Images(), 8, shuffle=True))


if __name__ == "__main__":
    main()
