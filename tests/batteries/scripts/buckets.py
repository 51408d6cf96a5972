"""
Sentences of like length are one batch; a sampler with `set_epoch` makes new ones, so that epochs differ in length.

Stands for: speech and translation toolkits with bucketing samplers.
"""

import random

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Sentences(Dataset):
    def __init__(self, size: int = 90) -> None:
        drawn = random.Random(4)
        self.items = [[drawn.randrange(1, 30) for _ in range(drawn.randint(3, 20))] for _ in range(size)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return torch.tensor(self.items[index])


class BucketSampler(Sampler):
    """Batches of at most `tokens` tokens after padding."""

    def __init__(self, lengths, tokens: int = 90, seed: int = 0) -> None:
        self.lengths = lengths
        self.tokens = tokens
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _batches(self):
        drawn = random.Random(f"{self.seed} {self.epoch}")
        order = sorted(range(len(self.lengths)), key=lambda index: self.lengths[index] + drawn.uniform(-3, 3))
        batches, batch, longest = [], [], 0
        for index in order:
            longest = max(longest, self.lengths[index])
            if batch and longest * (len(batch) + 1) > self.tokens:
                batches.append(batch)
                batch, longest = [], self.lengths[index]
            batch.append(index)
        batches.append(batch)
        drawn.shuffle(batches)
        return batches

    def __iter__(self):
        return iter(self._batches())

    def __len__(self):
        return len(self._batches())


class Tagger(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 8, padding_idx=0)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 30)
        self.lengths_of_epochs = []
        self.seen = 0

    def training_step(self, tokens, batch_idx):
        self.seen += 1
        hidden, _ = self.rnn(self.embed(tokens[:, :-1]))
        loss = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
        self.log("loss", loss, batch_size=len(tokens))
        return loss

    def on_train_epoch_end(self):
        self.lengths_of_epochs.append(self.seen)
        self.seen = 0

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(31)
    data = Sentences()
    sampler = BucketSampler([len(each) for each in data.items])
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=lambda items: pad_sequence(items, batch_first=True))
    trainer = pl.Trainer(max_epochs=4, accelerator="cpu", logger=False)
    model = Tagger()
    trainer.fit(model, loader)
    with open("epochs.txt", "w") as file:
        file.write(f"{model.lengths_of_epochs}\n")


if __name__ == "__main__":
    main()
