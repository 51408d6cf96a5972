"""
Two optimizers in turns by manual optimization, and samples from a fixed noise drawn into a file after each epoch.

Stands for: GAN collections (DCGAN, WGAN with several steps of the critic for each of the generator).
"""

import itertools

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CRITIC_STEPS = 3


class GAN(pl.LightningModule):
    def __init__(self, latent: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(latent, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.fixed_noise = torch.randn(9, latent)
        self.history = {"critic": [], "generator": []}

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_c = self.optimizers()
        noise = torch.randn(len(real), self.hparams.latent)
        self.toggle_optimizer(opt_c)
        loss_c = self.critic(self.generator(noise).detach()).mean() - self.critic(real).mean()
        opt_c.zero_grad()
        self.manual_backward(loss_c)
        opt_c.step()
        self.untoggle_optimizer(opt_c)
        for parameter in self.critic.parameters():
            parameter.data.clamp_(-0.1, 0.1)
        self.history["critic"].append(loss_c.item())
        if (batch_idx + 1) % CRITIC_STEPS == 0:
            self.toggle_optimizer(opt_g)
            loss_g = -self.critic(self.generator(noise)).mean()
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            self.untoggle_optimizer(opt_g)
            self.history["generator"].append(loss_g.item())
            self.log("loss_g", loss_g, prog_bar=True)

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()
        self.generator.eval()
        with torch.no_grad():
            torch.save(self.generator(self.fixed_noise), f"samples-{self.current_epoch}.pt")
        self.generator.train()

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
        opt_c = torch.optim.RMSprop(self.critic.parameters(), lr=5e-3)
        return [opt_g, opt_c], [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (opt_g, opt_c)]


def main() -> None:
    pl.seed_everything(1)
    grid = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=2)))
    real = grid.repeat(16, 1) + 0.05 * torch.randn(144, 2)
    trainer = pl.Trainer(max_epochs=4, accelerator="cpu", log_every_n_steps=3)
    trainer.fit(GAN(), DataLoader(TensorDataset(real), 12, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
