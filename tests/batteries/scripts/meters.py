"""
Metrics that go on over epochs, besides those that Lightning resets, and outputs that are gathered in a list.

Stands for: medical and classification repositories with torchmetrics and a confusion matrix in the end.
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MaxMetric, MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        scores = MetricCollection({"acc": MulticlassAccuracy(3), "f1": MulticlassF1Score(3)})
        self.train_scores = scores.clone(prefix="train/")
        self.val_scores = scores.clone(prefix="val/")
        self.confusion = MulticlassConfusionMatrix(3)  # over all epochs
        self.best = MaxMetric()
        self.mean_loss = MeanMetric()
        self.outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log_dict(self.train_scores(logits, y), on_step=False, on_epoch=True)
        self.mean_loss.update(loss)
        self.log("mean_loss", self.mean_loss)
        self.confusion.update(logits, y)
        self.outputs.append(logits.detach())
        return loss

    def on_train_epoch_end(self):
        gathered = torch.cat(self.outputs)
        self.log("spread", gathered.std())
        self.outputs.clear()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val_scores.update(self.net(x), y)

    def on_validation_epoch_end(self):
        scores = self.val_scores.compute()
        self.best(scores["val/acc"])
        self.log_dict({**scores, "val/best": self.best.compute()})
        self.val_scores.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(73)
    x = torch.randn(100, 6)
    data = TensorDataset(x, x[:, :3].argmax(1))
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", log_every_n_steps=5)
    model = Net()
    trainer.fit(model, DataLoader(data, 10, shuffle=True), DataLoader(data, 50))
    torch.save(model.confusion.compute(), "confusion.pt")


if __name__ == "__main__":
    main()
