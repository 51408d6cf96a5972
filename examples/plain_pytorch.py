"""A loop of one's own, made exactly resumable by `Loop`: two rings of points to tell apart, on a CPU or a GPU."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from spotrun import Loop

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rings(count: int) -> TensorDataset:
    outer, angle = torch.arange(count) % 2, torch.rand(count) * 2 * torch.pi
    return TensorDataset(
        (1 + outer[:, None]) * torch.stack([angle.cos(), angle.sin()], 1) + torch.randn(count, 2) / 3, outer
    )


def main() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2)).to(DEVICE)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    scaler = torch.amp.GradScaler(DEVICE)
    train = DataLoader(rings(12_000), 32, shuffle=True, drop_last=True)
    val = DataLoader(rings(1000), 250)
    loop = Loop(seed=1, model=model, ema=ema, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    s = loop.state(best=0.0, bad=0)
    for epoch in loop.epochs(12):
        model.train()
        for i, (x, y) in loop.enumerate(train):
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE)) / 2
            scaler.scale(loss).backward()
            if (i + 1) % 2 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                ema.update_parameters(model)
        scheduler.step()
        ema.eval()
        with torch.no_grad():
            right = sum((ema(x.to(DEVICE)).argmax(1) == y.to(DEVICE)).sum().item() for x, y in loop.validation(val))
        loop.log(accuracy=right / 1000)
        print(f"epoch {epoch}: {right / 10:.1f} % right")
        s.best, s.bad = (right, 0) if right > s.best else (s.best, s.bad + 1)
        if s.bad == 6:
            break
    torch.save(ema.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
