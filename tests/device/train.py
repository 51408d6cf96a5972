"""
Trains on the second simulated device, saves each step in a folder, and breaks while step `AT` is copied.

    train.py FOLDER RESULT FAULT        # "", "killed", "failed", "out of memory" or "caught" (out of memory twice)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from spotrun import Loop
from spotrun.training import local_folder, overlap, tensors
from tests.device import toy

AT = 4
DEVICE = 1


def break_it(fault: str) -> None:
    """Wait until the next copy has come to the gate, and break the process or its device then."""
    count = toy.copies(device=DEVICE, asynchronous=True)
    toy.allow(100, device=DEVICE)

    def once_it_copies() -> None:
        toy.settle(count + 1, device=DEVICE)
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        toy.fail(DEVICE)

    threading.Thread(target=once_it_copies, daemon=True).start()


def run_out_of_memory(times: int) -> None:
    """Raise what the device would if nothing were left for the checks of the numbers of the next snapshots."""
    are_finite, left = tensors.are_finite, [None] * times

    def without_memory(*args: Any) -> bool:
        if left:
            left.pop()
            raise torch.OutOfMemoryError
        return are_finite(*args)

    tensors.are_finite = without_memory


def main() -> None:
    folder, result, fault = sys.argv[1:]
    local_folder.EVERY_S = 0.0
    overlap.FROM_BYTES = overlap.PIECE_FROM_BYTES = 1
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1)).to(f"toy:{DEVICE}")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loop = Loop(seed=1, local=folder, model=model, optimizer=optimizer)
    state = loop.state(step=0, losses=[])
    for _ in loop.epochs(2):
        for x in loop.batches(DataLoader(torch.randn(32, 8), 4, shuffle=True)):
            loss = model(x.to(f"toy:{DEVICE}")).square().mean()
            optimizer.zero_grad()
            try:
                loss.backward()
                optimizer.step()
            except torch.OutOfMemoryError:
                if fault != "caught":
                    raise
            state.losses.append(loss.item())
            state.step += 1
            local_folder.in_folder(os.path.realpath(folder)).end()  # the last snapshot is on disk: there is room again
            if state.step == AT and fault in ("out of memory", "caught"):
                run_out_of_memory(2 if fault == "caught" else 1)
            elif state.step == AT and fault:
                break_it(fault)
    torch.save([*(value.cpu() for value in model.state_dict().values()), torch.tensor(state.losses)], result)


if __name__ == "__main__":
    main()
