"""
A Trainer with a loss and a loader of its own, which keeps a moving average of the loss of each class and weighs by it.

Stands for: "subclass Trainer" in the documentation of transformers, imbalanced data.
"""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from transformers import Trainer, TrainingArguments, set_seed

CLASSES = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES))

    def forward(self, x, labels=None):
        return {"logits": self.layers(x)}


class Balanced(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_loss = torch.ones(CLASSES)
        self.seen = []

    def get_train_dataloader(self):
        labels = self.train_dataset.tensors[1]
        weights = 1.0 / torch.bincount(labels)[labels]
        sampler = WeightedRandomSampler(weights, len(labels))
        return DataLoader(
            self.train_dataset, self.args.train_batch_size, sampler=sampler, collate_fn=self.data_collator
        )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(**inputs)
        losses = nn.functional.cross_entropy(outputs["logits"], labels, reduction="none")
        if model.training:
            for label, loss in zip(labels.tolist(), losses.detach(), strict=True):
                self.class_loss[label] = 0.9 * self.class_loss[label] + 0.1 * loss
            self.seen.append(len(labels))
        loss = (losses * self.class_loss[labels]).mean()
        return (loss, outputs) if return_outputs else loss


def collate(rows):
    x, labels = zip(*rows, strict=True)
    return {"x": torch.stack(x) + 0.1 * torch.randn(len(x), 8), "labels": torch.stack(labels)}


set_seed(5)
x = torch.randn(70, 8)
labels = (x.sum(1) > 1).long() + (x.sum(1) > 3).long()
args = TrainingArguments(
    output_dir="out",
    num_train_epochs=3,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
    report_to="none",
    use_cpu=True,
)
data = TensorDataset(x, labels)
trainer = Balanced(Net(), args, train_dataset=data, eval_dataset=data, data_collator=collate)
trainer.train()
torch.save(trainer.model.state_dict(), "weights.pt")
with open("classes.json", "w") as file:
    json.dump({"loss": trainer.class_loss.tolist(), "seen": trainer.seen, "log": trainer.state.log_history}, file)
