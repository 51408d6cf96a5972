"""The generator of the loader is the one of the training, and a callback draws from that of the data set."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import Noisy, done, loss_of, network, tick


class Jittered(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + float(self.rng.random()) * 0.1


def main():
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator, data = torch.Generator().manual_seed(2), Jittered()
    train = DataLoader(data, 5, shuffle=True, num_workers=1, generator=generator)
    loop = Loop(seed=3, model=model, optimizer=optimizer)
    s = loop.state(scale=[])
    for _ in loop.epochs(3):
        for x in loop.batches(train):
            s.scale.append(float(data.rng.random()))
            loss_of(model, x * s.scale[-1] + torch.rand(x.shape, generator=generator)).backward()
            tick()
            optimizer.step()
            optimizer.zero_grad()
        tick()
    rng = [repr(data.rng.bit_generator.state), generator.get_state()]
    done(model=model, optimizer=optimizer, s=vars(s), own=rng)


main()
