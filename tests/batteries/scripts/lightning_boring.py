"""
Lightning's BoringModel with its BoringDataModule, unchanged: fit, validate, test and predict.

Stands for: Lightning's own example `pytorch_lightning.demos.boring_classes`.
"""

from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import BoringDataModule, BoringModel

if __name__ == "__main__":
    trainer = Trainer(max_epochs=1, accelerator="cpu", limit_train_batches=40)
    model, data = BoringModel(), BoringDataModule()
    trainer.fit(model, datamodule=data)
    trainer.validate(model, datamodule=data)
    trainer.test(model, datamodule=data)
    trainer.predict(model, datamodule=data)
