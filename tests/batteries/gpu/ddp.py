"""Two processes with DistributedDataParallel, each with a device of its own and a share of the data."""

import os
import sys

import torch
from torch import distributed, nn
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from spotrun import Loop

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products on CUDA
KIND = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")


def main(rank: int) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = torch.device(KIND, rank if KIND != "cpu" else None)
    distributed.init_process_group(distributed.get_default_backend_for_device(KIND))
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(576, 10))
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    data = TensorDataset(torch.randn(512, 3, 8, 8), torch.randint(10, (512,)))
    loader = DataLoader(data, 16, sampler=(sampler := DistributedSampler(data, seed=3)))
    loop = Loop(seed=1, model=model, optimizer=optimizer)
    for epoch in loop.epochs(3):
        sampler.set_epoch(epoch)
        for images, digits in loop.batches(loader):
            loss = nn.functional.cross_entropy(model(images.to(device)), digits.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loop.log(loss=loss.item())
        print(f"rank {rank}, epoch {epoch}: loss {loss.item():.4f}")
    if rank == 0:
        torch.save(model.state_dict(), "ddp.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        main(int(os.environ["LOCAL_RANK"]))
    else:
        torchrun(["--standalone", "--nproc-per-node=2", *sys.argv[:1]])
