"""A bar around both loops, which the script keeps in variables."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


def main():
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    train = DataLoader(Noisy(), 5, shuffle=True, num_workers=1)
    loop = Loop(seed=4, model=model, optimizer=optimizer)
    s = loop.state(n=0)
    epochs = tqdm(loop.epochs(6), disable=False)
    for _ in epochs:
        bar = tqdm(loop.batches(train), leave=False)
        for x in bar:
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            bar.set_postfix(loss=loss.item())
            s.n += 1
            tick()
        epochs.set_description("epoch")
        if s.n > 20:
            break
    done(model=model, optimizer=optimizer, n=s.n)


main()
