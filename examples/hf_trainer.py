"""
A small language model with the Trainer of transformers: an ordinary script, which does not know spotrun.

    python examples/hf_trainer.py                   # alone, on this machine
    spotrun launch examples/hf_trainer.yaml         # the same script, unchanged, through interruptions

It needs transformers and accelerate. The model is made from a configuration, and the text is drawn: a walk over the
letters, of which the model can learn how long its steps are. So nothing is downloaded.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

LETTERS, LENGTH = 32, 32


class Walks(Dataset[dict[str, Tensor]]):
    """
    Sequences of letters, each one to three further than the one before it; a twentieth of them is noise, drawn again
    for each item.
    """

    def __init__(self, count: int, seed: int) -> None:
        steps = torch.randint(1, 4, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
        self.walks = steps.cumsum(1) % LETTERS

    def __len__(self) -> int:
        return len(self.walks)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        walk = self.walks[index]
        noise = torch.randint(LETTERS, (LENGTH,))
        return {"input_ids": torch.where(torch.rand(LENGTH) < 0.05, noise, walk), "labels": walk}


def arguments(epochs: float, folder: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        logging_steps=10,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        report_to="none",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--output", default="walks")
    parser.add_argument("--width", type=int, default=64, help="of the model, a multiple of 4")
    words = parser.parse_args()
    set_seed(1)
    config = GPT2Config(
        vocab_size=LETTERS,
        n_positions=LENGTH,
        n_embd=words.width,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments(words.epochs, words.output),
        train_dataset=Walks(1024, seed=1),
        eval_dataset=Walks(128, seed=2),
    )
    trainer.train()
    trainer.save_model(f"{words.output}/best")
    loss = trainer.evaluate()["eval_loss"]
    print(f"perplexity {math.exp(loss):.3f}, of 3 at best")


if __name__ == "__main__":
    main()
