"""Lightning's own BoringModel, as its documentation has it; from the `lightning` package."""

from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

if __name__ == "__main__":
    Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False).fit(BoringModel())
