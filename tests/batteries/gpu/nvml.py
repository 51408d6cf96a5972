"""Compares the figures of the agent about GPUs with those of PyTorch, while a GPU computes."""

from __future__ import annotations

import time

import pynvml
import torch

from spotrun.agent.machine.gpus import look

BUSY_S = 3.0


def main() -> None:
    if not torch.cuda.is_available():
        print("no GPU: there are no figures")
        return
    device = torch.device("cuda", 0)
    held = torch.zeros(4 << 30, dtype=torch.uint8, device=device)
    one = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    pynvml.nvmlInit()
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        one @ one
        torch.cuda.synchronize()
    (found, *_) = look(pynvml, None)
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    print(f"{found}; by PyTorch, it has {total_bytes} bytes, and {held.numel()} are in use here")
    assert found.share is not None
    assert found.share > 0.5
    assert abs(found.memory_bytes / total_bytes - 1) < 0.05
    assert found.memory_used_bytes > held.numel()


if __name__ == "__main__":
    main()
