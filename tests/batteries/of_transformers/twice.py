"""
Two trainings in one script: a head first, then the whole model, of which one checkpoint alone is kept.

Stands for: linear probing before fine-tuning; save_total_limit=1.
"""

import json

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed


class Stripes(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.zeros(3, 8, 8)
        image[:, :: index % 2 + 2] = 1.0
        return {"pixel_values": image + 0.3 * torch.rand(3, 8, 8), "labels": index % 2}


def arguments(folder, epochs, rate):
    return TrainingArguments(
        output_dir=folder, num_train_epochs=epochs, per_device_train_batch_size=6, learning_rate=rate, logging_steps=2,
        eval_strategy="steps", eval_steps=3, save_steps=3, save_total_limit=1, load_best_model_at_end=True,
        report_to="none", use_cpu=True,
    )  # fmt: skip


set_seed(9)
config = ViTConfig(
    image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    num_labels=2, hidden_dropout_prob=0.1,
)  # fmt: skip
model = ViTForImageClassification(config)
model.vit.requires_grad_(False)
probe = Trainer(model, arguments("probe", 2, 1e-2), train_dataset=Stripes(36), eval_dataset=Stripes(12))
first = probe.train()
model.vit.requires_grad_(True)
tuned = Trainer(model, arguments("tuned", 2, 1e-3), train_dataset=Stripes(36), eval_dataset=Stripes(12))
second = tuned.train()
tuned.save_model("final")
with open("result.json", "w") as file:
    json.dump([first.training_loss, second.training_loss, probe.state.log_history, tuned.state.log_history], file)
