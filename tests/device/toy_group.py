"""The processes of a training on the simulated accelerator: gloo, through copies on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import _create_work_from_future


class Group(distributed.ProcessGroup):
    """Has the calls that DistributedDataParallel makes. Each call has ended when it returns."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = distributed.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "toy"

    def allreduce(self, tensors: list[Tensor], options: Any) -> Any:
        return _through_cpu([tensors], lambda copies: self._gloo.allreduce(*copies, options))

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        return _through_cpu([tensors], lambda copies: self._gloo.broadcast(*copies, options))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> Any:
        return _through_cpu([*outputs, inputs], lambda copies: self._gloo.allgather(copies[:-1], copies[-1], options))

    def barrier(self, options: Any) -> Any:
        return _through_cpu([], lambda _: self._gloo.barrier())


def _through_cpu(lists: list[list[Tensor]], call: Callable[[list[list[Tensor]]], Any]) -> Any:
    copies = [[tensor.cpu() for tensor in tensors] for tensors in lists]
    call(copies).wait()
    for tensors, changed in zip(lists, copies, strict=True):
        for tensor, copy in zip(tensors, changed, strict=True):
            tensor.copy_(copy)
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(lists[0] if lists else None)
    return _create_work_from_future(done)
