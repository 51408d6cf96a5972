"""torch.distributed.checkpoint, as in PyTorch's recipe for asynchronous saving: one in flight, then the next."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType as Kind
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

from benchmarks.checkpoint.peers import Ending, Peer
from benchmarks.checkpoint.plan import EVERY_STEPS
from benchmarks.checkpoint.training import Clock

__all__ = ["Fsspec", "Kind", "S3Torch", "Saving"]


class Storage(Protocol):
    def writer(self, name: str) -> Any: ...

    def reader(self, name: str) -> Any: ...


class Fsspec:
    """A store accessed by s3fs."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def writer(self, name: str) -> Any:
        return FsspecWriter(f"{self._uri}/{name}")

    def reader(self, name: str) -> Any:
        return FsspecReader(f"{self._uri}/{name}")


class S3Torch:
    """A store accessed by Amazon's connector for PyTorch."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def writer(self, name: str) -> Any:
        from s3torchconnector.dcp import S3StorageWriter

        return S3StorageWriter(**self._place(name))

    def reader(self, name: str) -> Any:
        from s3torchconnector.dcp import S3StorageReader

        return S3StorageReader(**self._place(name))

    def _place(self, name: str) -> dict[str, Any]:
        from s3torchconnector import S3ClientConfig

        region = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        config = S3ClientConfig(force_path_style="AWS_ENDPOINT_URL" in os.environ)
        return {"region": region, "path": f"{self._uri}/{name}/", "s3client_config": config}


class ReusedStager(DefaultStager):
    """Keeps its memory from save to save. PyTorch 2.11 closes the caller's own stager after each one."""

    def close(self) -> None:
        pass


class Saving(Peer):
    """
    Saves in a thread or a process of its own. The state is copied into reused memory: pinned where there is a GPU, by a
    thread, while training goes on to the next step of an optimizer; else shared, which is the fastest without one.
    """

    def __init__(self, folder: Path, storage: Storage, kind: Kind) -> None:
        super().__init__(folder)
        self._storage, self._kind = storage, kind
        self._stager: DefaultStager | None = None
        self._in_flight: Future[Any] | None = None
        self._staging: Future[None] | None = None

    def callbacks(self, clock: Clock, notices: int) -> list[pl.Callback]:
        be_a_group_of_one()
        gpu = torch.cuda.is_available()
        options = StagingOptions(
            use_pinned_memory=gpu, use_shared_memory=not gpu, use_async_staging=gpu, use_non_blocking_copy=gpu
        )
        self._stager = ReusedStager(options)
        return [Ending(clock, self, notices), EverySoOften(self)]

    def restoring_callbacks(self) -> list[pl.Callback]:
        return [Loading(self._storage)]

    def save(self, trainer: pl.Trainer, number: int) -> None:
        self.begin(trainer, _paused(number))

    def begin(self, trainer: pl.Trainer, name: str) -> None:
        self.finish()
        began, step = time.perf_counter(), trainer.global_step
        found = dcp.async_save(
            _state(trainer),
            storage_writer=self._storage.writer(name),
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        if isinstance(found, AsyncSaveResponse):
            self._staging, found = found.staging_completion, found.upload_completion
        found.add_done_callback(lambda _: self.saves.append((step, time.perf_counter() - began)))
        self._in_flight = found

    def staged(self) -> None:
        """Wait until an optimizer may write to the state again."""
        if self._staging is not None:
            self._staging.result()
            self._staging = None

    def finish(self) -> None:
        if self._in_flight is not None:
            self._in_flight.result()


class EverySoOften(pl.Callback):
    def __init__(self, saving: Saving) -> None:
        self._saving = saving

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step % EVERY_STEPS == 0:
            self._saving.begin(trainer, f"step-{trainer.global_step}")

    def on_before_optimizer_step(self, *_: Any) -> None:
        self._saving.staged()


class Loading(pl.Callback):
    """Loads in place, into the network and an optimizer whose moments it makes first."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        state = _state(trainer)
        dcp.load(state, storage_reader=self._storage.reader(_paused(0)), no_dist=True)
        set_state_dict(module, trainer.optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def _state(trainer: pl.Trainer) -> dict[str, Any]:
    model, optimizer = get_state_dict(trainer.lightning_module, trainer.optimizers)
    return {"model": model, "optimizer": optimizer}


def _paused(number: int) -> str:
    return f"paused-{number}"


def be_a_group_of_one() -> None:
    """Make a group of one process; a process that saves has to be in a group."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=0, world_size=1)
