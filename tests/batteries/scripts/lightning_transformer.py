"""
Lightning's LightningTransformer, unchanged, on a text that is made here: its own is downloaded.

Stands for: Lightning's own example `pytorch_lightning.demos.transformer`.
"""

import random
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.demos.transformer import LightningTransformer, WikiText2


def make_text(file: Path) -> None:
    """Where WikiText2 looks before it downloads."""
    drawn = random.Random(1)
    words = [f"word{number}" for number in range(60)]
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(" ".join(drawn.choices(words, k=20)) for _ in range(80)))


if __name__ == "__main__":
    make_text(Path("data", "wikitext-2.txt"))
    pl.seed_everything(1)
    trainer = pl.Trainer(max_epochs=2, limit_train_batches=20, accelerator="cpu", logger=False)
    trainer.fit(LightningTransformer(vocab_size=WikiText2().vocab_size))
