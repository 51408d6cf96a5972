"""The transformer of Lightning's demos, unchanged, on the text in ./data."""

import pytorch_lightning as pl
from pytorch_lightning.demos import LightningTransformer, WikiText2

if __name__ == "__main__":
    pl.seed_everything(1, verbose=False)
    trainer = pl.Trainer(
        max_epochs=2, limit_train_batches=20, accelerator="cpu", logger=False, enable_progress_bar=False
    )
    trainer.fit(LightningTransformer(vocab_size=WikiText2().vocab_size))
