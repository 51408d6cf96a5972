"""
Measures the step time of an elastic training next to DDP's, where no process is ever lost.

    python -m benchmarks.elastic [--rounds 5] [--processes 2 4] [--millions 5 25] [--batches 8 256]

Each round trains the same network on the same batches by DistributedDataParallel, by `loop.micro_batches` with as
many virtual ranks as processes, and with four times as many, in turn and by gloo on this machine. Ratios are those of
the median steps of a round. The table has the median of the rounds, and the least and the greatest. Bytes are those
that one process sends to the others in a step, divided by those of a ring all-reduce of the gradients.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.arguments import at_least
from spotrun import Loop
from spotrun.trainer_link import VIRTUAL_RANKS

DDP = 0
"""Virtual ranks per process that stand for DistributedDataParallel."""
WAYS = (DDP, 1, 4)
STEPS, UNTIMED = 12, 4
WITHIN_S = 600.0


class Setting(NamedTuple):
    """The size of the network in million parameters, and the samples of each process in a step."""

    processes: int
    millions: int
    batch: int


class Measured(NamedTuple):
    """The seconds of the median step of rank 0, and the bytes that it sends in a step."""

    step_s: float
    sent_bytes: int


def network(millions: int) -> nn.Module:
    width = round((millions * 1e6 / 4) ** 0.5)
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers)


def train(rank: int, way: int, setting: Setting, rendezvous: str, result: Any) -> None:
    """Train as rank `rank` in a process of its own."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=setting.processes)
    os.environ.pop(VIRTUAL_RANKS, None)
    if way != DDP:
        os.environ[VIRTUAL_RANKS] = str(way * setting.processes)
    torch.manual_seed(1)
    model = network(setting.millions)
    wrapped = DistributedDataParallel(model) if way == DDP else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    samples = torch.randn(setting.batch // max(1, way), next(model.parameters()).shape[1])
    loop = Loop(seed=1, model=wrapped, optimizer=optimizer)
    times, sent = [], _Sent(setting.processes)
    for number in loop.steps(STEPS):
        distributed.barrier()
        began_s = time.perf_counter()
        sent.counts = number == STEPS - 1
        if way == DDP:
            wrapped(samples).square().mean().backward()
        else:
            for _ in loop.micro_batches():
                model(samples).square().mean().backward()
        sent.counts = False
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began_s)
    if rank == 0:
        result.put(Measured(median(times[UNTIMED:]), sent.bytes))
    distributed.destroy_process_group()


class _Sent:
    """Counts the bytes that the collective calls of an elastic step send, while `counts` is true."""

    def __init__(self, processes: int) -> None:
        self.counts, self.bytes = False, 0
        for name, share in (
            ("all_to_all_single", (processes - 1) / processes),
            ("all_gather_single", processes - 1),
        ):
            setattr(distributed, name, self._counting(getattr(distributed, name), share))

    def _counting(self, call: Callable[..., Any], share: float) -> Callable[..., Any]:
        def counted(to: Tensor, tensor: Tensor, *args: Any) -> Any:
            self.bytes += round(tensor.nbytes * share) if self.counts else 0
            return call(to, tensor, *args)

        return counted


def measured(way: int, setting: Setting) -> Measured:
    """
    Train once, and return what rank 0 has measured.

    Raises:
        SystemExit: a process failed.
    """
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{Path(folder) / 'rendezvous'}"
        ranks = [
            context.Process(target=train, args=(rank, way, setting, where, results))
            for rank in range(setting.processes)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(WITHIN_S)
        if any(each.exitcode for each in ranks):
            raise SystemExit("a process of the training failed: see above")
        found: Measured = results.get()
    return found


def ring_bytes(setting: Setting) -> float:
    """Return the bytes that one process sends in a ring all-reduce of the gradients."""
    size = sum(each.nbytes for each in network(setting.millions).parameters())
    return 2 * (setting.processes - 1) / setting.processes * size


def row(setting: Setting, rounds: Sequence[dict[int, Measured]]) -> str:
    cells = [str(setting.processes), f"{setting.millions} M", str(setting.batch)]
    cells += [f"{1000 * median(each[DDP].step_s for each in rounds):.0f} ms"]
    for way in WAYS[1:]:
        ratios = sorted(each[way].step_s / each[DDP].step_s for each in rounds)
        sent = rounds[0][way].sent_bytes / ring_bytes(setting)
        cells += [f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", f"{sent:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--processes", type=at_least(2), nargs="+", default=[2, 4])
    parser.add_argument("--millions", type=at_least(1), nargs="+", default=[5, 25])
    parser.add_argument("--batches", type=at_least(4), nargs="+", default=[8, 256], help="samples of each process")
    parser.add_argument("--seed", type=int, default=1, help="of the order within a round")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    head = ("processes", "parameters", "samples", "DDP", "V = N", "bytes", "V = 4 N", "bytes")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for processes in args.processes:
        for millions in args.millions:
            for batch in args.batches:
                setting = Setting(processes, millions, batch)
                rounds = [
                    {way: measured(way, setting) for way in rng.sample(WAYS, len(WAYS))} for _ in range(args.rounds)
                ]
                print(row(setting, rounds), flush=True)


if __name__ == "__main__":
    main()
