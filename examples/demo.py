"""
`make demo`: examples/resnet50.yaml, fitted to this machine.

    python examples/demo.py

A notice of two minutes lasts six seconds where time passes 20 times as fast. An idle machine saves the whole ResNet-50
in one of them; a busy one does not. So this script measures how long a step, a checkpoint and a start take here and
now, chooses how wide the network is, how many threads train it and how fast time passes, prints its choice, and
launches that job.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOB = HERE / "resnet50.yaml"
FITTED = HERE.parent / "build" / "demo.yaml"

WIDTHS = (1.0, 0.5, 0.25, 0.125)
SCALE = 20
"""The time scale of JOB."""
WORK_S = 1700.0
"""Run time that the training should last: two notices, and the 7 minutes without spot, pass while it trains."""
NOTICE_S = 120.0
SAVES_WITHIN = 0.4
"""The share of a notice that a final checkpoint may need, as measured before: the machine may become busier."""
ENDS_WITHIN_S = 220.0
STEPS = 340
"""6 epochs of 47 steps, the steps done twice, and validations, which take as long as 3 steps each."""
STARTS = 8
"""Six instances, and other programs that start Python. The first one reads its modules from the disk."""
WAITS_S = 400.0
"""Run time in which nothing trains: boots, and the wait for spot."""


@dataclass(frozen=True)
class Fit:
    """
    One choice, with its times on this machine: seconds for a step, for a checkpoint and for a start of Python with
    torch. `width` is that of ResNet50; `threads` compute.
    """

    width: float
    threads: int
    step_s: float
    save_s: float
    start_s: float

    @property
    def time_scale(self) -> int:
        """
        The time scale of the job, or one at which all its interruptions meet the training; but not so fast that a final
        checkpoint would need more than its share of a notice. The agent keeps a reserve of 1.5 times the checkpoint, a
        step, and 0.6 s for what a busy machine loses to scheduling.
        """
        wanted = max(SCALE, WORK_S / (STEPS * self.step_s))
        needed_s = 1.5 * self.save_s + self.step_s + 0.6
        return max(1, int(min(wanted, SAVES_WITHIN * NOTICE_S / needed_s)))

    @property
    def lasts_s(self) -> float:
        return STEPS * self.step_s + STARTS * self.start_s + WAITS_S / self.time_scale


def choose(fits: Iterator[Fit]) -> Fit:
    """Return the first that ends in time; else the last."""
    fit = None
    for fit in fits:
        if fit.lasts_s <= ENDS_WITHIN_S:
            break
    assert fit is not None
    return fit


def measured() -> Iterator[Fit]:
    """Yield fits to this machine, the widest network first. Each is measured when the caller takes it."""
    began_s = time.perf_counter()
    import pytorch_lightning  # noqa: F401
    import torch

    start_s = time.perf_counter() - began_s
    cores = torch.get_num_threads()
    # Threads that wait for one another lose a hundredfold where they do not all get a processor.
    threads = min((1, cores), key=lambda count: _step_s(WIDTHS[-2], count))
    for width in WIDTHS:
        step_s = _step_s(width, threads)
        yield Fit(width, threads, step_s, 0.0 if STEPS * step_s > ENDS_WITHIN_S else _save_s(width), start_s)


def _step_s(width: float, threads: int) -> float:
    import torch

    torch.set_num_threads(threads)
    step = _training(width)
    step()  # the first one allocates
    return min(_seconds(step), _seconds(step))


def _training(width: float):
    """Return a function that does one step, on the device on which Lightning will train."""
    import torch
    import torch.nn.functional as F
    from resnet50 import ResNet50

    device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    network = ResNet50(10, width).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    x_BCHW, label_B = torch.randn(32, 3, 32, 32, device=device), torch.randint(10, (32,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x_BCHW), label_B)
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device

    step.parameters = sum(parameter.numel() for parameter in network.parameters())
    return step


def _save_s(width: float) -> float:
    """
    Return the seconds to save weights and momenta as the agent does: while training goes on, which is served first.
    """
    from spotrun.checkpoint.upload import upload
    from spotrun.store.opening import open_store

    step, over = _training(width), threading.Event()
    image = memoryview(os.urandom(1 << 20) * max(1, 2 * 4 * step.parameters >> 20))

    def train() -> None:
        while not over.is_set():
            step()

    beside = threading.Thread(target=train)
    beside.start()
    try:
        with tempfile.TemporaryDirectory(prefix=".demo-", dir=Path.home()) as folder:
            return _seconds(lambda: upload(open_store(folder), "probe", image, {}))
    finally:
        over.set()
        beside.join()


def _seconds(act) -> float:
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s


def fitted(job: str, fit: Fit) -> str:
    """Return the job file for that fit."""
    for old, new in (
        ("workdir: .", f"workdir: {json.dumps(str(HERE))}"),
        ('args: [--epochs, "6"]', f'args: [--epochs, "6", --width, "{fit.width:g}"]'),
        ("\nresources:", f'\nenvs: {{OMP_NUM_THREADS: "{fit.threads}"}}\n\nresources:'),
        (f"time_scale: {SCALE}", f"time_scale: {fit.time_scale}"),
    ):
        assert job.count(old) == 1, old
        job = job.replace(old, new)
    return job


def said(fit: Fit) -> str:
    threads = f"{fit.threads} thread" + "s" * (fit.threads > 1)
    network = "the whole ResNet-50" if fit.width == 1 else f"a ResNet-50 with {fit.width:g} times the channels"
    text = (
        f"Measured here and now: a training step takes {fit.step_s:.2f} s on {threads}, "
        f"a checkpoint {fit.save_s:.1f} s, a start {fit.start_s:.1f} s.\n"
        f"So the demo trains {network}, and time passes {fit.time_scale} times as fast."
    )
    if (fit.width, fit.time_scale) != (1.0, SCALE):
        text += "\nSo times, sizes and dollars below differ from those in the README, which are of an idle machine."
    return text


def main() -> None:
    print("measuring this machine", flush=True)
    sys.path.insert(0, str(HERE))
    fit = choose(measured())
    FITTED.parent.mkdir(exist_ok=True)
    FITTED.write_text(fitted(JOB.read_text(), fit))
    print(f"{said(fit)}\nThe job is in {FITTED.relative_to(HERE.parent)}.", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "spotrun", "launch", str(FITTED), "-y", *sys.argv[1:]])  # noqa: S606


if __name__ == "__main__":
    main()
