"""
Words get their numbers from a set, and nothing is seeded.

Stands for: sequence tagging scripts whose vocabulary and split are others at each start.
"""

import random

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

TEXT = "the cat sat on a mat while some dog ran to my old house and his new friend saw that red bird fly away"
TAGS = {"cat", "mat", "dog", "house", "friend", "bird"}


def sentences():
    words = TEXT.split()
    return [[random.choice(words) for _ in range(random.randint(3, 8))] for _ in range(110)]


class Tagger(pl.LightningModule):
    def __init__(self, vocabulary: dict[str, int]) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embed = nn.Embedding(len(vocabulary) + 1, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 2)

    def collate(self, texts):
        x = [torch.tensor([self.vocabulary[word] for word in text]) for text in texts]
        y = [torch.tensor([int(word in TAGS) for word in text]) for text in texts]
        lengths = torch.tensor([len(text) for text in texts])
        return pad_sequence(x, batch_first=True), pad_sequence(y, batch_first=True, padding_value=-100), lengths

    def _loss(self, batch):
        x, y, lengths = batch
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())

    def training_step(self, batch, batch_idx):
        return self._loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch), batch_size=len(batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main() -> None:
    texts = sentences()
    random.shuffle(texts)
    vocabulary = {word: number for number, word in enumerate({word for text in texts for word in text}, 1)}
    model = Tagger(vocabulary)
    train, val = texts[:90], texts[90:]
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False)
    trainer.fit(
        model,
        DataLoader(train, 10, shuffle=True, collate_fn=model.collate),
        DataLoader(val, 20, collate_fn=model.collate),
    )


if __name__ == "__main__":
    main()
