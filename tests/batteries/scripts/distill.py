"""
A student learns from a teacher that a hook makes and that is no part of the student's state.

Stands for: knowledge distillation, where the teacher is put into a list to keep it out of checkpoints.
"""

import copy

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Student(pl.LightningModule):
    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.temperature = temperature
        self.hidden_teacher = []

    def on_fit_start(self):
        teacher = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 4))
        self.hidden_teacher = [teacher.eval().requires_grad_(False)]

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        wanted = self.hidden_teacher[0](x)
        soft = nn.functional.kl_div(
            (logits / self.temperature).log_softmax(1), (wanted / self.temperature).softmax(1), reduction="batchmean"
        )
        self.log("soft", soft)
        return 0.3 * nn.functional.cross_entropy(logits, y) + 0.7 * self.temperature**2 * soft

    def on_train_epoch_end(self):
        if self.current_epoch == 2:  # from here on it learns from itself
            self.hidden_teacher[0] = copy.deepcopy(self.net).eval().requires_grad_(False)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(61)
    x = torch.randn(96, 6)
    data = TensorDataset(x, x[:, :4].argmax(1))
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False)
    trainer.fit(Student(), DataLoader(data, 10, shuffle=True))


if __name__ == "__main__":
    main()
