"""examples/resnet50.py on any accelerator, of which Lightning itself knows only those of NVIDIA and Apple."""

import os
import runpy
from typing import Any

import torch
from pytorch_lightning.accelerators import Accelerator, AcceleratorRegistry
from pytorch_lightning.strategies import SingleDeviceStrategy, StrategyRegistry

KIND = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")


class Current(Accelerator):
    """The accelerator of this process, as PyTorch has it."""

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device(KIND, index) for index in range(devices)]

    @staticmethod
    def auto_device_count() -> int:
        return torch.accelerator.device_count()

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return KIND

    def setup_device(self, device: torch.device) -> None:
        torch.accelerator.set_device_index(device.index)

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    def teardown(self) -> None:
        pass


def use_accelerator() -> None:
    """Let each Trainer of this process train on its accelerator."""
    if KIND not in ("cpu", "cuda", "mps"):
        AcceleratorRegistry.register(KIND, Current)
        StrategyRegistry.register(KIND, SingleDeviceStrategy, device=torch.device(KIND, 0))
        os.environ |= {"PL_TRAINER_ACCELERATOR": KIND, "PL_TRAINER_STRATEGY": KIND}


if __name__ == "__main__":
    use_accelerator()
    runpy.run_module("examples.resnet50", run_name="__main__", alter_sys=True)
