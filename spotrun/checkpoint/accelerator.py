"""
Copies tensors out of an accelerator's memory without stopping the training. A copy begins when the computations that
were queued before it are done, and runs in parallel with later computations.

The accelerator copies into pinned memory, on a separate stream, while its other streams compute. Python threads keep
running, because no copy holds the interpreter lock. Without an accelerator, this module does nothing.

Everything here is PyTorch's interface for all accelerators (`torch.accelerator`, `torch.Stream`, `torch.Event`), except
for pinning: PyTorch itself pins only memory that it has allocated, and arenas are memory of the agent. An accelerator
without streams, or one that cannot pin such memory, copies correctly but more slowly; this is reported once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


class CopyStreams:
    """The streams for copies: one on each device, created when first needed."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.Stream] = {}

    def devices(self, tensors: Iterable[Tensor]) -> set[torch.device]:
        return {tensor.device for tensor in tensors if copies_aside(tensor)}

    def mark(self, device: torch.device) -> torch.Event:
        """
        Return an event that occurs when the device has done all work that the calling thread has queued so far on its
        current stream.
        """
        event = torch.Event(device)
        event.record(torch.accelerator.current_stream(device))
        return event

    @contextlib.contextmanager
    def beside(self, device: torch.device, mark: torch.Event) -> Iterator[None]:
        """
        Make the device do the work of the `with` block on its copy stream. The work begins when the device has passed
        `mark`. At the end of the block, even if it raises an error, wait until the work is done.
        """
        if device not in self._streams:
            self._streams[device] = torch.Stream(device)
        stream = self._streams[device]
        stream.wait_event(mark)
        try:
            with stream:
                yield
        finally:
            stream.synchronize()

    def wait(self, device: torch.device) -> None:
        """Wait until the device has done all work that the calling thread has queued."""
        torch.accelerator.current_stream(device).synchronize()


class Moment:
    """
    The moment at which this object is made, marked in the work queue of each device that holds `tensors`. Later reads
    of the tensors wait for the mark, so they see the results of all work that was queued before it.
    """

    def __init__(self, tensors: Iterable[Tensor], lanes: CopyStreams) -> None:
        self._lanes = lanes
        self._marks = {device: lanes.mark(device) for device in lanes.devices(tensors)}

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """
        Let the `with` block copy the tensors as they were when this object was made. The block may run in another
        thread. At the end of the block, wait until the copies are done.
        """
        with contextlib.ExitStack() as stack:
            for device, mark in self._marks.items():
                stack.enter_context(self._lanes.beside(device, mark))
            yield


def copies_aside(tensor: Tensor) -> bool:
    """Return True if `tensor` is in the memory of an accelerator that can copy while it computes."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and tensor.device.type == accelerator.type and _has_streams(accelerator.type)


@cache
def _has_streams(kind: str) -> bool:
    """
    Return True if an accelerator has streams. One without them either refuses to make a stream, or refuses to wait for
    it: on MPS, all streams are the same queue.
    """
    try:
        stream = torch.Stream(kind)
        torch.Event(kind).record(stream)
        stream.synchronize()
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        _report(f"{kind} has no streams ({reason}): training waits while a snapshot is copied")
        return False
    return True


def pin(memory: Tensor) -> None:
    """
    Pin `memory`, so that devices can write to it directly. If that is impossible, report it: copies then go through the
    CPU, and are slower.
    """
    module = _in_use()
    if module is None:
        return
    registry = _registry(module)
    if registry is None:
        _report(f"{_kind()} cannot pin memory for snapshots: copies from the device take longer")
    elif code := registry.register(memory.data_ptr(), memory.numel()):
        what = f"{memory.numel() / 1e9:.1f} GB of memory for snapshots (error {code})"
        _report(f"{_kind()} could not pin {what}: copies from the device take longer")
        registry.forget_error()


def unpin(memory: Tensor) -> None:
    """Undo `pin`, if it succeeded."""
    module = _in_use()
    registry = None if module is None else _registry(module)
    if registry is not None and memory.is_pinned():
        registry.unregister(memory.data_ptr())


def generator_states() -> dict[str, Tensor]:
    """Return the state of the random number generator of each device, by the device's name."""
    module = _in_use()
    if module is None:
        return {}
    states = module.get_rng_state_all() if hasattr(module, "get_rng_state_all") else [module.get_rng_state()]
    return {f"{_kind()}:{index}": state for index, state in enumerate(states)}


class _Registry(NamedTuple):
    """
    Functions that pin memory that was allocated elsewhere, by its address and its size in bytes. `register` returns 0,
    or the code of an error.
    """

    register: Callable[[int, int], int]
    unregister: Callable[[int], Any]
    forget_error: Callable[[], None] = lambda: None


def _registry(module: Any) -> _Registry | None:
    """
    Return the registry of an accelerator; None if it has none. PyTorch has no interface for this. An accelerator other
    than CUDA (or ROCm, which PyTorch calls CUDA) can offer `host_register` and `host_unregister` in its module.
    """
    if module is torch.cuda:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        return _Registry(
            lambda address, size: int(runtime.cudaHostRegister(address, size, 0)),
            runtime.cudaHostUnregister,
            _forget_cuda_error,
        )
    if hasattr(module, "host_register"):
        return _Registry(module.host_register, module.host_unregister)
    return None


def _forget_cuda_error() -> None:
    """
    Clear the error of a call that CUDA refused. Otherwise, the next kernel of this thread would raise it: CUDA keeps
    the last error of each thread until it is read, and PyTorch reads it after each launch.
    """
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(0)


def _in_use() -> Any | None:
    """
    Return PyTorch's module for the accelerator that this process uses, such as torch.cuda. Return None if it uses none,
    or has not initialized it.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    module: Any = torch.get_device_module(accelerator)
    is_in_use = getattr(module, "is_initialized", module.is_available)
    return module if is_in_use() else None


def _kind() -> str:
    return str(torch.accelerator.current_accelerator())


@cache
def _report(message: str) -> None:
    """Print a message, once in this process."""
    print(f"spotrun: {message}", file=sys.stderr, flush=True)
