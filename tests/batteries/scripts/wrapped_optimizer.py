"""
Lookahead around another optimizer, with slow weights of its own.

Stands for: repositories with wrapper optimizers (Lookahead, SAM, SWA by hand).
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lookahead(torch.optim.Optimizer):
    def __init__(self, base: torch.optim.Optimizer, every: int = 5, alpha: float = 0.5) -> None:
        self.base = base
        self.every = every
        self.alpha = alpha
        self.steps = 0
        super().__init__(base.param_groups, dict(base.defaults))
        self.param_groups = base.param_groups
        self.slow = [[each.detach().clone() for each in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.base.step(closure)
        self.steps += 1
        if self.steps % self.every == 0:
            for slow_group, group in zip(self.slow, self.param_groups, strict=True):
                for slow, fast in zip(slow_group, group["params"], strict=True):
                    slow.add_(fast - slow, alpha=self.alpha)
                    fast.copy_(slow)
        return loss


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return Lookahead(torch.optim.AdamW(self.parameters(), lr=0.01))


def main() -> None:
    pl.seed_everything(109)
    x = torch.randn(96, 6)
    data = TensorDataset(x, (2 * x[:, :1]).cos())
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False)
    trainer.fit(Net(), DataLoader(data, 10, shuffle=True))


if __name__ == "__main__":
    main()
