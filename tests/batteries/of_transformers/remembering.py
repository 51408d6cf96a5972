"""
Functions that remember in a default argument, an object's method as a metric, the logs in a file of the script's own.

Stands for: small scripts that grew.
"""

import json

import torch
from torch import nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments, set_seed


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


class Scores:
    def __init__(self):
        self.best = []

    def best_so_far(self, prediction, calls=[0]):  # noqa: B006
        calls[0] += 1
        self.best.append(float((prediction.predictions.argmax(-1) == prediction.label_ids).mean()))
        return {"best": max(self.best), "calls": calls[0]}


def falling(outputs, labels, num_items_in_batch=None, seen=[]):  # noqa: B006
    seen.append(len(seen))
    return nn.functional.cross_entropy(outputs["logits"], labels) / (1 + 0.01 * len(seen))


def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([label for _, label in rows])}


set_seed(1)
data = TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,)))
args = TrainingArguments(
    output_dir="out", num_train_epochs=5, per_device_train_batch_size=5, eval_strategy="epoch", save_strategy="no",
    logging_steps=1, report_to="none", use_cpu=True, remove_unused_columns=False, disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    Net(), args, train_dataset=data, eval_dataset=data, data_collator=collate, compute_metrics=Scores().best_so_far,
    compute_loss_func=falling,
)  # fmt: skip
trainer.train()
timed = ("runtime", "per_second", "preparation_time")
with open("result.json", "w") as file:
    json.dump([{key: log[key] for key in log if not key.endswith(timed)} for log in trainer.state.log_history], file)
