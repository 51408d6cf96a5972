"""
A character model trained for a number of steps, in the manner of nanoGPT: settings are variables of the module, which
`--name=value` replaces; batches are drawn from a mapped file; the rate is computed at each step; losses are estimated
every few steps, and the best model is kept in a file.

Stands for: nanoGPT and its many children.
"""

import json
import math
import os
import sys
from ast import literal_eval

import numpy as np
import torch
from torch import nn

from spotrun import Loop

out_dir = "out"
eval_interval, eval_iters, log_interval = 8, 3, 2
gradient_accumulation_steps, batch_size, block_size = 2, 6, 16
n_layer, n_head, n_embd, dropout = 2, 2, 24, 0.1
learning_rate, min_lr, warmup_iters, max_iters = 1e-2, 1e-3, 5, 48
weight_decay, beta2, grad_clip = 0.1, 0.99, 1.0
for word in sys.argv[1:]:
    key, _, value = word.removeprefix("--").partition("=")
    globals()[key] = literal_eval(value)

VOCABULARY = 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(n_embd, n_head, dropout=dropout, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)])
        self.grow = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout)
        )

    def forward(self, x):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        seen = self.norms[0](x)
        x = x + self.attend(seen, seen, seen, attn_mask=later, need_weights=False)[0]
        return x + self.grow(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, n_embd)
        self.places = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.norm = nn.LayerNorm(n_embd)

    def forward(self, x, y):
        h = self.drop(self.tokens(x) + self.places.weight[: x.shape[1]])
        logits = self.norm(self.blocks(h)) @ self.tokens.weight.T
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    def configure_optimizers(self):
        decays = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decays, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, learning_rate, betas=(0.9, beta2))


def prepare(split, length):
    """Each number follows from the two before, but for some."""
    rng = np.random.default_rng(len(split))
    text = rng.integers(0, VOCABULARY, length)
    for n in np.flatnonzero(rng.random(length) < 0.9):
        text[n] = (text[n - 1] + text[n - 2]) % VOCABULARY
    text.astype(np.uint16).tofile(f"{split}.bin")


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[n : n + block_size].astype(np.int64)) for n in starts])
    y = torch.stack([torch.from_numpy(data[n + 1 : n + 1 + block_size].astype(np.int64)) for n in starts])
    return x, y


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    found = {}
    for split in ("train", "val"):
        found[split] = sum(model(*get_batch(split))[1].item() for _ in range(eval_iters)) / eval_iters
    model.train()
    return found


def write(line):
    with open(os.path.join(out_dir, "log.jsonl"), "a") as file:
        file.write(json.dumps(line) + "\n")


os.makedirs(out_dir, exist_ok=True)
for split, length in (("train", 3000), ("val", 600)):
    if not os.path.exists(f"{split}.bin"):
        prepare(split, length)
torch.manual_seed(1337)
model = GPT()
optimizer = model.configure_optimizers()
loop = Loop(seed=1337, model=model, optimizer=optimizer)
s = loop.state(best_val_loss=1e9)
for it in loop.steps(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % eval_interval == 0:
        losses = estimate_loss(model)
        write({"iter": it, **losses, "lr": get_lr(it)})
        if losses["val"] < s.best_val_loss:
            s.best_val_loss = losses["val"]
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": it}
            torch.save(checkpoint | {"best_val_loss": s.best_val_loss}, os.path.join(out_dir, "ckpt.pt"))
    for _ in range(gradient_accumulation_steps):
        _, loss = model(*get_batch("train"))
        (loss / gradient_accumulation_steps).backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % log_interval == 0:
        write({"iter": it, "loss": loss.item()})
write({"iter": max_iters, **estimate_loss(model)})
torch.save(model.state_dict(), os.path.join(out_dir, "final.pt"))
