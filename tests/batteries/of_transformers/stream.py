"""
A stream without a length, read by steps, with accumulation that does not divide a pass.

Stands for: pretraining on a streamed data set with max_steps.
"""

import random

import torch
from torch.utils.data import IterableDataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments, set_seed


class Documents(IterableDataset):
    """The same documents in another order on each pass, cut into chunks."""

    def __iter__(self):
        documents = [[(start * 7 + step) % 40 for step in range(24)] for start in range(11)]
        random.shuffle(documents)
        tokens = [token for document in documents for token in document]
        for at in range(0, len(tokens) - 8, 8):
            chunk = torch.tensor(tokens[at : at + 8])
            yield {"input_ids": chunk, "labels": chunk}


set_seed(4)
config = GPTNeoXConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=8, hidden_dropout=0.1, bos_token_id=0, eos_token_id=0,
)  # fmt: skip
args = TrainingArguments(
    output_dir="out", max_steps=24, per_device_train_batch_size=3, gradient_accumulation_steps=3, learning_rate=1e-2,
    logging_steps=1, save_steps=8, eval_strategy="steps", eval_steps=6, report_to="none", use_cpu=True,
    include_num_input_tokens_seen="all",
)  # fmt: skip
trainer = Trainer(GPTNeoXForCausalLM(config), args, train_dataset=Documents(), eval_dataset=Documents())
trainer.train()
trainer.save_model()
trainer.save_state()
