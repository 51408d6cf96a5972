"""
Sequences are classified; the best epoch by accuracy is loaded at the end, and training stops early.

Stands for: examples/pytorch/text-classification/run_glue.py of transformers, and notebooks of the course.
"""

import json

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sequences(Dataset):
    """Random tokens, some of them masked anew each time; the label is their sum's parity."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.tokens = [rng.integers(3, 40, rng.integers(6, 20)) for _ in range(count)]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index].copy()
        label = int(tokens.sum() % 2)
        tokens[np.random.rand(len(tokens)) < 0.1] = 1
        return {"input_ids": tokens, "label": label}


def collate(samples):
    length = max(len(each["input_ids"]) for each in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    for row, each in enumerate(samples):
        ids[row, : len(each["input_ids"])] = torch.as_tensor(each["input_ids"])
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([each["label"] for each in samples]),
    }


def compute_metrics(prediction):
    guessed = prediction.predictions.argmax(-1)
    return {"accuracy": float((guessed == prediction.label_ids).mean())}


set_seed(3)
config = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
args = TrainingArguments(
    output_dir="results",
    num_train_epochs=6,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=16,
    learning_rate=2e-3,
    weight_decay=0.01,
    train_sampling_strategy="group_by_length",
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="accuracy",
    save_total_limit=2,
    dataloader_num_workers=2,
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=args,
    train_dataset=Sequences(60, 1),
    eval_dataset=Sequences(30, 2),
    data_collator=collate,
    compute_metrics=compute_metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
)
output = trainer.train()
trainer.save_model("best")
with open("result.json", "w") as file:
    best = trainer.state.best_metric, trainer.state.best_global_step
    json.dump({"loss": output.training_loss, "best": best, "history": trainer.state.log_history}, file, indent=1)
