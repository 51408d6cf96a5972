"""
An optimizer and a schedule of the script's own, by a tuple; rates differ by layer, the schedule waits for a plateau.

Stands for: layer-wise rates, and scripts that were a loop once.
"""

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed


class Waves(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        phase = torch.rand(1) * 6
        wave = torch.sin(torch.linspace(0, 6, 10) + phase)
        return {"x": wave + 0.1 * torch.randn(10), "labels": (phase > 3).long().squeeze()}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.body, self.head = nn.BatchNorm1d(10), nn.Linear(10, 20), nn.Linear(20, 2)

    def forward(self, x, labels=None):
        logits = self.head(torch.relu(self.body(self.norm(x))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


set_seed(8)
model = Net()
optimizer = torch.optim.SGD(
    [
        {"params": [*model.norm.parameters(), *model.body.parameters()], "lr": 0.02},
        {"params": model.head.parameters(), "lr": 0.1, "momentum": 0.5},
    ],
    momentum=0.9,
    nesterov=True,
)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
args = TrainingArguments(
    output_dir="out", num_train_epochs=4, per_device_train_batch_size=5, logging_steps=3, eval_strategy="steps",
    eval_steps=4, save_strategy="best", metric_for_best_model="loss", greater_is_better=False, report_to="none",
    use_cpu=True,
)  # fmt: skip
trainer = Trainer(model, args, train_dataset=Waves(35), eval_dataset=Waves(15), optimizers=(optimizer, schedule))
trainer.train()
trainer.save_model("final")
trainer.save_state()
torch.save(optimizer.state_dict(), "optimizer.pt")
