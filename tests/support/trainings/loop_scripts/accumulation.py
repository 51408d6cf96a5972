"""Accumulation that does not divide, the rest stepped behind the pass; a scheduler, a scaler, an average."""

from __future__ import annotations

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from spotrun import Loop
from tests.support.trainings.loop_scripts.world import LOCAL, Noisy, done, loss_of, network, tick


def main():
    torch.manual_seed(1)
    model = network()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    scaler = torch.amp.GradScaler("cpu")
    train, val = DataLoader(Noisy(), 5, shuffle=True), DataLoader(Noisy(12), 4, shuffle=True)
    loop = Loop(seed=3, local=LOCAL, model=model, ema=ema, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    s = loop.state(best=9.0, bad=0, seen=[])
    for _ in loop.epochs(4):
        model.train()
        for i, x in loop.enumerate(train):
            scaler.scale(loss_of(model, x) / 3).backward()
            tick()
            if (i + 1) % 3 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                ema.update_parameters(model)
            tick()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        ema.eval()
        total = 0.0
        with torch.no_grad():
            for x in loop.validation(val):
                total += loss_of(ema, x + torch.rand(1)).item()
                tick()
        loop.log(val=total)
        s.best, s.bad = (total, 0) if total < s.best else (s.best, s.bad + 1)
        s.seen.append(total)
        tick()
    done(model=model, ema=ema, optimizer=optimizer, scheduler=scheduler, scaler=scaler, s=vars(s))


main()
