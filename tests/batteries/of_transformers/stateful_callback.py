"""
A callback that averages weights, writes a log of its own, freezes a layer for a while, and changes the data by epoch.

Stands for: callbacks as people write them for the Trainer.
"""

import random

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


class Curriculum(Dataset):
    noise = 0.0

    def __len__(self):
        return 48

    def __getitem__(self, index):
        x = torch.linspace(0, 1, 6) * index / 48
        return {"x": x + self.noise * random.random(), "labels": x.sum()}


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 1)

    def forward(self, x, labels=None):
        guessed = self.head(torch.tanh(self.body(x))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(guessed, labels), "logits": guessed}


class Average(TrainerCallback):
    def __init__(self, data):
        self.data, self.average, self.steps, self.worst = data, {}, 0, []
        self.log = open("average.csv", "w")  # noqa: SIM115

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        model.body.requires_grad_(False)
        self.log.write("step,norm,drawn\n")

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.data.noise += 0.1

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps += 1
        with torch.no_grad():
            for name, weight in model.named_parameters():
                self.average[name].lerp_(weight, 0.1)
        if self.steps == 7:
            model.body.requires_grad_(True)
        norm = sum(value.norm().item() for value in self.average.values())
        self.log.write(f"{self.steps},{norm!r},{random.random()!r}\n")
        self.log.flush()

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.worst = sorted([*self.worst, logs.get("loss", 0.0)])[-3:]

    def on_train_end(self, args, state, control, **kwargs):
        self.log.write(f"worst,{self.worst!r}\n")
        self.log.close()
        torch.save(self.average, "average.pt")


set_seed(2)
data = Curriculum()
args = TrainingArguments(
    output_dir="out", num_train_epochs=3, per_device_train_batch_size=6, learning_rate=3e-2, logging_steps=2,
    save_strategy="no", report_to="none", use_cpu=True, lr_scheduler_type="constant",
)  # fmt: skip
trainer = Trainer(Regression(), args, train_dataset=data, callbacks=[Average(data)])
trainer.train()
trainer.save_model("final")
trainer.save_state()
