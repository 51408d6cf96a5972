"""
The simulated accelerator "toy" (toy_device.cpp) for PyTorch: this module is `torch.toy` once `load` was called.

It cannot be unloaded, so each test that uses it runs in a process of its own (conftest.py). A script trains on the
device `toy:0` or `toy:1` if PYTHONPATH has the checkout and its folder tests/device/plugin, which PyTorch loads.
"""

from __future__ import annotations

import ctypes
import enum
import sys
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from tests.device.build import library

COUNT = 2
ALL = -1
"""Number of bytes for `allow`: a gate that is open."""
STATE_BYTES = 16

_toy: ctypes.CDLL


class Direction(enum.IntEnum):
    """Which way a copy goes: from a device, to a device, or within one."""

    DOWNLOAD = 0
    UPLOAD = 1
    INSIDE = 2


DOWNLOAD, UPLOAD, INSIDE = Direction


def load() -> None:
    """Make this process's accelerator "toy"."""
    if hasattr(torch, "toy"):
        return
    global _toy
    _toy = ctypes.CDLL(str(library()))
    signatures = {
        "toy_allow": (None, "iil"),
        "toy_settle": ("i", "iil"),
        "toy_rate": (None, "d"),
        "toy_compute": (None, "id"),
        "toy_now": ("d", ""),
        "toy_come_to": (None, "d"),
        "toy_copies": ("l", "iii"),
        "toy_fail": (None, "i"),
        "toy_set_capacity": (None, "il"),
        "toy_used": ("l", "i"),
        "toy_faults": ("l", ""),
        "toy_overdue": ("l", ""),
        "toy_refuse_to_register": (None, "i"),
        "toy_take_streams": (None, ""),
        "toy_host_register": ("i", "Pl"),
        "toy_host_unregister": ("i", "P"),
        "toy_seed": (None, "iL"),
        "toy_get_state": (None, "iP"),
        "toy_set_state": (None, "iP"),
    }
    kinds = {
        "i": ctypes.c_int,
        "l": ctypes.c_int64,
        "L": ctypes.c_uint64,
        "d": ctypes.c_double,
        "P": ctypes.c_void_p,
        None: None,
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(_toy, name)
        function.restype, function.argtypes = kinds[result], [kinds[each] for each in arguments]
    torch.utils.rename_privateuse1_backend("toy")
    torch._register_device_module("toy", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.empty(1, pin_memory=True)  # initializes it: until then, no memory counts as pinned
    torch.distributed.Backend.register_backend("toy", _group, devices=["toy"])


def _group(*arguments: Any) -> Any:
    from tests.device.toy_group import Group

    return Group(*arguments)


# --- what PyTorch, and spotrun, use


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return COUNT


def current_device() -> int:
    return torch.accelerator.current_device_index()


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def manual_seed_all(seed: int) -> None:
    for index in range(COUNT):
        _toy.toy_seed(index, seed & (1 << 64) - 1)


def get_rng_state(device: int | str | torch.device = "toy") -> Tensor:
    state = torch.empty(STATE_BYTES, dtype=torch.uint8)
    _toy.toy_get_state(_index(device), state.data_ptr())
    return state


def set_rng_state(state: Tensor, device: int | str | torch.device = "toy") -> None:
    assert state.is_cpu
    assert state.nbytes == STATE_BYTES
    _toy.toy_set_state(_index(device), state.data_ptr())


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(COUNT)]


def host_register(address: int, size_bytes: int) -> int:
    """Pin memory that was allocated elsewhere. Return 0, or the code of an error."""
    return int(_toy.toy_host_register(address, size_bytes))


def host_unregister(address: int) -> int:
    return int(_toy.toy_host_unregister(address))


def _index(device: int | str | torch.device) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


# --- what tests do to it


def allow(size_bytes: int, direction: Direction = DOWNLOAD, device: int = 0) -> None:
    """Let this many more bytes of asynchronous copies pass, and stop copies then. `ALL` lets all pass."""
    _toy.toy_allow(device, direction, size_bytes)


def settle(copies: int = 0, direction: Direction = DOWNLOAD, device: int = 0) -> None:
    """Wait until this many asynchronous copies were queued, and no stream can do more before something else happens."""
    assert _toy.toy_settle(device, direction, copies), "there are fewer copies, or something never rests"


def rate(bytes_per_s: float) -> None:
    """Let copies from and to devices take the time that this speed gives, from now on. At 0, they take none."""
    _toy.toy_rate(bytes_per_s)


def compute(seconds: float, device: int = 0) -> None:
    """Queue a computation that takes this long on the current stream. (Real operators take no time.)"""
    _toy.toy_compute(device, seconds)


def now() -> float:
    """
    Return the time at which the calling thread is, in seconds: how long it would have waited for devices so far. This
    clock stands still while a thread does anything else.
    """
    return float(_toy.toy_now())


def come_to(seconds: float) -> None:
    """Let the calling thread wait until this time, for example until what another thread has done for it."""
    _toy.toy_come_to(seconds)


def copies(direction: Direction = DOWNLOAD, device: int = 0, *, asynchronous: bool) -> int:
    """Return the number of copies since the device was loaded."""
    return int(_toy.toy_copies(device, direction, asynchronous))


def fail(device: int = 0) -> None:
    """Break the device: it copies nothing more, and each wait for it raises an error."""
    _toy.toy_fail(device)


def set_capacity(size_bytes: int, device: int = 0) -> None:
    _toy.toy_set_capacity(device, size_bytes)


def used_bytes(device: int = 0) -> int:
    """Return the bytes of memory in use. Freed memory counts until the device has come to where it was freed."""
    return int(_toy.toy_used(device))


def refuse_to_register(code: int) -> None:
    """Refuse to pin memory from now on, with this code."""
    _toy.toy_refuse_to_register(code)


def take_streams() -> None:
    """Make no streams from now on, as a device without streams."""
    _toy.toy_take_streams()


def faults() -> int:
    """
    Return how often memory was freed or unpinned while it was copied, or unpinned without being pinned, since the last
    call.
    """
    return int(_toy.toy_faults())


def overdue() -> int:
    """Return how often a copy passed a closed gate, because nothing opened it for 20 s."""
    return int(_toy.toy_overdue())
