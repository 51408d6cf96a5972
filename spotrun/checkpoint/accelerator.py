"""
Copies tensors out of an accelerator's memory without stopping the training. A copy begins when the computations that
were queued before it are done, and runs in parallel with later computations.

The accelerator copies into pinned memory, on a separate stream, while its other streams compute. Python threads keep
running, because no copy holds the interpreter lock. Without an accelerator, this module does nothing.

Everything here is PyTorch's interface for all accelerators (`torch.accelerator`, `torch.Stream`, `torch.Event`), except
for pinning: only CUDA can pin memory that was allocated elsewhere.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


class CopyStreams:
    """The streams for copies: one on each device, created when first needed."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.Stream] = {}

    def devices(self, tensors: Iterable[Tensor]) -> set[torch.device]:
        return {tensor.device for tensor in tensors if is_on_accelerator(tensor)}

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
        `mark`. At the end of the block, wait until the work is done.
        """
        if device not in self._streams:
            self._streams[device] = torch.Stream(device)
        stream = self._streams[device]
        stream.wait_event(mark)
        with stream:
            yield
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


def is_on_accelerator(tensor: Tensor) -> bool:
    """Return whether `tensor` is in the memory of an accelerator of the kind that this build of PyTorch supports."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and tensor.device.type == accelerator.type


def pin(memory: Tensor) -> None:
    """
    Pin `memory`, so that devices can write to it directly. If pinning fails, report that: copies then go through the
    CPU, and are slower.
    """
    if not _in_use():
        return
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))  # type: ignore[no-untyped-call]
    if code:
        print(
            f"spotrun: CUDA could not pin {memory.numel() / 1e9:.1f} GB of memory for snapshots (error {code}): "
            "copies from the GPU take longer",
            file=sys.stderr,
            flush=True,
        )
        _forget_error()


def unpin(memory: Tensor) -> None:
    """Undo `pin`, if it succeeded."""
    if _in_use() and memory.is_pinned():
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]


def _forget_error() -> None:
    """
    Clear the error of a call that CUDA refused. Otherwise, the next kernel of this thread would raise it: CUDA keeps
    the last error of each thread until it is read, and PyTorch reads it after each launch.
    """
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(0)


def _in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
