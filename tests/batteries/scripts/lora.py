"""
Low-rank adapters on frozen layers; checkpoints hold the adapters alone.

Stands for: repositories that fine-tune language models with LoRA and take the frozen weights out of the state.
"""

import math

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Adapted(nn.Module):
    def __init__(self, frozen: nn.Linear, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.empty(rank, frozen.in_features))
        self.lora_b = nn.Parameter(torch.zeros(frozen.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale = alpha / rank
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.frozen(x) + self.scale * self.dropout(x) @ self.lora_a.T @ self.lora_b.T


class LanguageModel(pl.LightningModule):
    def __init__(self, vocabulary: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width).requires_grad_(False)
        self.layers = nn.Sequential(Adapted(nn.Linear(width, width)), nn.GELU(), Adapted(nn.Linear(width, vocabulary)))

    def training_step(self, batch, batch_idx):
        (tokens,) = batch
        logits = self.layers(self.embed(tokens[:, :-1]))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {name: each for name, each in checkpoint["state_dict"].items() if "lora_" in name}

    def configure_optimizers(self):
        trained = [each for each in self.parameters() if each.requires_grad]
        return torch.optim.AdamW(trained, lr=0.02, weight_decay=0.01)


def main() -> None:
    pl.seed_everything(17)
    tokens = torch.randint(0, 20, (96, 1)) + torch.arange(9)
    kept = ModelCheckpoint("adapters", every_n_train_steps=10, save_top_k=-1)
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, callbacks=[kept], gradient_clip_val=1.0)
    model = LanguageModel()
    trainer.fit(model, DataLoader(TensorDataset(tokens % 20), 12, shuffle=True))
    torch.save({name: each for name, each in model.named_parameters() if "lora_" in name}, "adapter.pt")


if __name__ == "__main__":
    main()
