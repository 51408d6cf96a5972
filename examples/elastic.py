"""A training on any number of processes, always with the same bits: two rings of points to tell apart."""

import os

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from spotrun import Loop


def rings(count: int) -> TensorDataset:
    outer, angle = torch.arange(count) % 2, torch.rand(count) * 2 * torch.pi
    points = (1 + outer[:, None]) * torch.stack([angle.cos(), angle.sin()], 1)
    return TensorDataset(points + torch.randn(count, 2) / 3, outer)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # torchrun has started the processes
        distributed.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    train = DataLoader(rings(4000), batch_size=128, shuffle=True)  # 128 samples of all processes together
    loop = Loop(seed=1, model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in loop.epochs(4):
        for batch in loop.batches(train):
            for x, y in loop.micro_batches(batch):
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                mean = loop.mean(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=mean)
        scheduler.step()
        if os.environ.get("RANK", "0") == "0":
            print(f"epoch {epoch}: loss {mean:.3f}")
            torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
