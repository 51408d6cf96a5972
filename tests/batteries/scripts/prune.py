"""
A tenth of the weights is taken away after each epoch, as lottery tickets are drawn.

Stands for: compression examples with Lightning's ModelPruning.
"""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, ModelPruning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 24)
        self.last = nn.Linear(24, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.last(self.first(x).relu()), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    pl.seed_everything(67)
    model = Net()
    x = torch.randn(96, 10)
    data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
    prune = ModelPruning(
        "l1_unstructured",
        parameters_to_prune=[(model.first, "weight"), (model.last, "weight")],
        amount=lambda epoch: 0.1 if epoch else 0.0,
        use_lottery_ticket_hypothesis=lambda epoch: epoch == 3,
    )
    trainer = pl.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, callbacks=[prune, ModelCheckpoint("kept", save_last=True)]
    )
    trainer.fit(model, DataLoader(data, 10, shuffle=True))
    with open("sparsity.txt", "w") as file:
        file.writelines(f"{name} {int((each == 0).sum())}\n" for name, each in model.state_dict().items())


if __name__ == "__main__":
    main()
