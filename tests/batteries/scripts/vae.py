"""
The weight of the divergence rises with the steps and is kept in an attribute, as are sums over the epoch.

Stands for: VAE collections with KL annealing (cyclical or linear).
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(pl.LightningModule):
    def __init__(self, latent: int = 2) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 16), nn.ReLU(), nn.Linear(16, 10))
        self.beta = 0.0
        self.iterations = 0
        self.sums = {"reconstruction": 0.0, "divergence": 0.0}
        self.curve = []

    def training_step(self, batch, batch_idx):
        (x,) = batch
        self.iterations += 1
        self.beta = min(1.0, (self.iterations % 20) / 15)
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        reconstruction = nn.functional.mse_loss(self.decoder(z), x)
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).mean()
        self.sums["reconstruction"] += reconstruction.item()
        self.sums["divergence"] += divergence.item()
        self.log("beta", self.beta)
        return reconstruction + self.beta * divergence

    def on_train_epoch_end(self):
        self.curve.append(dict(self.sums))
        self.sums = dict.fromkeys(self.sums, 0.0)
        torch.save(self.decoder(torch.randn(4, 2)).detach(), "samples.pt")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(47)
    x = torch.randn(96, 2) @ torch.randn(2, 10)
    pl.Trainer(max_epochs=5, accelerator="cpu", log_every_n_steps=5).fit(
        VAE(), DataLoader(TensorDataset(x), 10, shuffle=True)
    )


if __name__ == "__main__":
    main()
