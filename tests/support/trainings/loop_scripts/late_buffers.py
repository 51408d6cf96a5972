"""
A buffer that the first forward pass makes, as rotary embeddings do it, a layer that is pruned in training, and an
optimizer around another one that is none of torch's but in name.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, WIDTH, Noisy, done, loss_of, network, tick


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.length = network(), 0

    def forward(self, x):
        if len(x) > self.length:
            self.length = len(x)
            angles = torch.arange(self.length).unsqueeze(1) / torch.arange(1, WIDTH + 1)
            self.register_buffer("cos", angles.cos(), persistent=False)
        return self.inner(x * self.cos[: len(x)])


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner):  # and no super().__init__()
        self.inner, self.param_groups, self.defaults = inner, inner.param_groups, inner.defaults
        self.state, self.steps = defaultdict(dict), 0

    def step(self, closure=None):
        self.inner.step(closure)
        self.steps += 1
        for weight in self.param_groups[0]["params"]:
            slow = self.state[weight].setdefault("slow", weight.detach().clone())
            if self.steps % 3 == 0:
                slow += (weight.detach() - slow) / 2
                weight.data.copy_(slow)

    def zero_grad(self):
        self.inner.zero_grad()

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "slow": list(self.state.values()), "steps": self.steps}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        self.steps = state["steps"]


def main():
    torch.manual_seed(1)
    model = Turned()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
    train = DataLoader(Noisy(8), 5, shuffle=True)
    loop = Loop(seed=5, local=LOCAL, model=model, optimizer=optimizer)
    for epoch in loop.epochs(6):
        if epoch == 1:
            prune.l1_unstructured(model.inner[0], "weight", 0.3)
        for x in loop.batches(train):
            loss_of(model, x).backward()
            tick()
            optimizer.step()
            optimizer.zero_grad()
            tick()
    done(model=model, optimizer=optimizer, weights=sorted(name for name, _ in model.named_buffers()))


main()
