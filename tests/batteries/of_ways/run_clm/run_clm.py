"""
A language model trained from a config, in the manner of run_clm: arguments of three classes, in words or in a file;
text cut into blocks, evaluation within each epoch, the best model at the end with its perplexity, and a look for the
last checkpoint of an earlier start.

Stands for: examples/pytorch/language-modeling/run_clm.py of transformers.
"""

import math
import os
import sys
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

BLOCK = 16


@dataclass
class ModelArguments:
    layers: int = field(default=2, metadata={"help": "How many of them."})
    width: int = field(default=32, metadata={"help": "Of each."})


@dataclass
class DataArguments:
    train_blocks: int = field(default=100)
    eval_blocks: int = field(default=16)


class Blocks(Dataset):
    """Consecutive pieces of one long text of tokens."""

    def __init__(self, tokens):
        self.blocks = tokens[: len(tokens) // BLOCK * BLOCK].view(-1, BLOCK)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return {"input_ids": self.blocks[index], "labels": self.blocks[index].clone()}


def text(length, seed):
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 5, (length,), generator=generator)
    return steps.cumsum(0) % 64


def compute_metrics(prediction):
    logits, labels = prediction
    return {"accuracy": float((logits[:, :-1].argmax(-1) == labels[:, 1:]).mean())}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, args = parser.parse_json_file(os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, args = parser.parse_args_into_dataclasses()
    last_checkpoint = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    set_seed(args.seed)
    config = GPT2Config(
        vocab_size=64, n_positions=BLOCK, n_embd=model_args.width, n_layer=model_args.layers, n_head=2, attn_pdrop=0.1,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Blocks(text(BLOCK * data_args.train_blocks, 1)),
        eval_dataset=Blocks(text(BLOCK * data_args.eval_blocks, 2)),
        data_collator=default_data_collator,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits,
    )
    result = trainer.train(resume_from_checkpoint=last_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    trainer.save_metrics("eval", metrics)


if __name__ == "__main__":
    main()
