"""Two networks, two optimizers, one of which steps in each third batch only."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, network, tick


def main():
    torch.manual_seed(1)
    g, d = network(), torch.nn.Sequential(network(), torch.nn.Linear(6, 1))
    g_opt, d_opt = torch.optim.Adam(g.parameters(), 0.01), torch.optim.RMSprop(d.parameters(), 0.01)
    train = DataLoader(Noisy(), 5, shuffle=True)
    loop = Loop(seed=2, models=[g, d], optimizers={"g": g_opt, "d": d_opt})
    s = loop.state(history=[])
    for _ in loop.epochs(3):
        for i, real in loop.enumerate(train):
            fake = g(torch.randn_like(real))
            loss = (d(fake.detach()) - d(real)).mean() + 0.1 * d(real).pow(2).mean()
            d_opt.zero_grad()
            loss.backward()
            d_opt.step()
            tick()
            if i % 3 == 2:
                g_opt.zero_grad()
                (-d(g(torch.randn_like(real))).mean()).backward()
                g_opt.step()
            s.history.append(loss.item())
            tick()
    done(g=g, d=d, g_opt=g_opt, d_opt=d_opt, history=s.history)


main()
