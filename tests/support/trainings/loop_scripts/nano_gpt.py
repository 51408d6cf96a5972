"""A loop over steps that draws its own batches, accumulates, and evaluates each few steps."""

from __future__ import annotations

import torch

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import done, loss_of, network, tick

torch.manual_seed(1)
data = torch.randn(200, 6)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
loop = Loop(seed=1, model=model, optimizer=optimizer)
s = loop.state(best=1e9, losses=[])


def get_batch():
    ix = torch.randint(len(data), (8,))
    return data[ix]


@torch.no_grad()
def estimate():
    model.eval()
    found = sum(loss_of(model, get_batch()).item() for _ in range(3))
    model.train()
    return found


for step in loop.steps(30):
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * (1 - step / 40)
    if step % 7 == 0:
        s.best = min(s.best, estimate())
    for _ in range(3):
        loss = loss_of(model, get_batch()) / 3
        loss.backward()
        tick()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    s.losses.append(loss.item())
    tick()
done(model=model, optimizer=optimizer, best=s.best, losses=s.losses)
