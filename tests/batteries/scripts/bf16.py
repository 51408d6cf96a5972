"""
Mixed precision in bfloat16 with clipped gradients and a check that drops steps that are not finite.

Stands for: recipes for large models; here on the CPU.
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.forward_part = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x):
        normed = self.norms[0](x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.forward_part(self.norms[1](x))


class GPT(pl.LightningModule):
    def __init__(self, vocabulary: int = 16, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(12, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.skipped = 0

    def training_step(self, batch, batch_idx):
        (tokens,) = batch
        x = self.blocks(self.embed(tokens[:, :-1]) + self.places[: tokens.shape[1] - 1])
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())
        if batch_idx == 5:  # as a loss that is no number
            self.skipped += 1
            return None
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, betas=(0.9, 0.95))
        plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plan, "interval": "step"}}


def main() -> None:
    pl.seed_everything(107)
    tokens = (torch.randint(0, 16, (80, 1)) + 3 * torch.arange(10)) % 16
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", precision="bf16-mixed", gradient_clip_val=1.0, logger=False)
    trainer.fit(GPT(), DataLoader(TensorDataset(tokens), 8, shuffle=True))


if __name__ == "__main__":
    main()
