"""
Runs everything that only a GPU can confirm, and prints a table.

    make gpu                   about ten minutes on a machine with one GPU
    make gpu DEVICE=cpu        the same without a GPU, smaller
    make gpu DEVICE=test       the trainings on the two devices of the simulated accelerator (tests/device)

Steps that only check run at the same time; then those that measure run alone. The output of each step goes into a file
of the folder `--out`. Exits with 1 if any step fails. `GPU_ARGS='--only GPT,demo'` runs only some steps.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.table import Table

from tests.device.build import PLUGIN, missing
from tests.support.repository import ROOT

HERE = Path(__file__).parent.relative_to(ROOT)
LASTS_S = 600.0
LOOKS_EVERY_S = 0.2
Device = Literal["auto", "cpu", "test"]
TITLES = {"auto": "What a GPU has confirmed", "cpu": "Without a GPU", "test": "On the simulated accelerator"}


@dataclass
class Step:
    """
    A command, and what to tell of its output. With `measures`, it runs alone. It may exit with any of `codes`; the
    time limit is `within_s`.
    """

    name: str
    words: Sequence[str]
    told: Callable[[str], str] = lambda output: ""
    measures: bool = False
    codes: tuple[int, ...] = (0,)
    within_s: float = LASTS_S
    began_s: float = 0.0
    lasted_s: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    why: str = ""

    def begin(self, out: Path) -> None:
        self.began_s = time.monotonic()
        with self.log(out).open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_over(self) -> bool:
        """Return whether it has ended; end it if its time is over."""
        assert self.process is not None
        self.lasted_s = time.monotonic() - self.began_s
        if self.process.poll() is None:
            if self.lasted_s < self.within_s:
                return False
            self.why = f"its time limit of {self.within_s:.0f} s was over; a busy machine is slower"
        self.end()
        return True

    def end(self) -> None:
        """End the step's processes: with SIGTERM, then after some seconds with SIGKILL."""
        assert self.process is not None
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGTERM)
                self.process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log(self, out: Path) -> Path:
        return out / f"{self.name.replace(' ', '-')}.log"

    @property
    def passed(self) -> bool:
        return self.process is not None and self.process.returncode in self.codes


def verdict(output: str) -> str:
    """Return what `verify-resume --json` found."""
    found = json.loads(output[output.index("{") :])
    return f"{'identical' if found['identical'] else 'differs'}, {json.dumps(found)[:300]}"


def lines(count: int) -> Callable[[str], str]:
    """Return a function that returns the last lines of an output."""
    return lambda output: "\n".join(output.strip().splitlines()[-count:])


def steps(device: str, out: Path, store: str) -> list[Step]:
    """Return the steps; smaller ones without a GPU, and those that train or test on a device for the simulated one."""
    gpu, simulated = device == "auto", device == "test"
    kills, epochs, precision = ("3", "2", "16-mixed") if gpu else ("1", "1", "bf16-mixed")
    # A CPU without instructions for half precision multiplies matrices 25 times slower than in single precision.
    gpt = ["--sentences", "1600"] if gpu else ["--sentences", "320", "--width", "64"]
    verify = ["-m", "spotrun", "verify-resume", "--json", "--kills", kills]
    resnet = [f"{HERE}/resnet50.py", "--", "--epochs", epochs]
    if simulated:  # Lightning knows no mixed precision for it
        resnet += ["--width", "0.0625", "--batch-size", "128"]
    else:
        resnet += ["--precision", precision, *([] if gpu else ["--width", "0.125"])]
    tests = "tests/device" if simulated else "tests/unit/test_accelerator.py"
    benchmark = ["-m", "benchmarks.checkpoint", "--variants", "none,ours,dcp_thread_s3,pl_local", "--store", store]
    found = [
        Step("verify-resume of a GPT", [*verify, f"{HERE}/gpt.py", "--", *gpt], verdict),
        Step("verify-resume of ResNet-50", [*verify, *resnet, "--deterministic"], verdict),
        Step("tests", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly", tests], lines(1)),
    ]
    if not gpu or torch.accelerator.device_count() > 1:
        found.append(Step("verify-resume of DDP", [*verify, f"{HERE}/ddp.py"], verdict))
    if simulated:
        return found
    found.append(Step("demo", ["examples/demo.py", "--store", str(out / "demo")], lines(6)))
    found.append(Step("NVML", ["-m", "tests.batteries.gpu.nvml"], lines(3)))
    if gpu:
        found.append(Step("ResNet-50 not deterministic", [*verify, *resnet], verdict, codes=(0, 9)))
        found.append(Step("copies", ["-m", "tests.batteries.gpu.copies"], lines(4), measures=True))
    sizes = {"1 GB": "gpt", "8 GB": "gpt-8gb"} if gpu else {"9 MB": "tiny"}
    for size, model in sizes.items():
        words = [*benchmark, "--models", model, "--rounds", "1", "--json", str(out / f"checkpoints-{model}.json")]
        found.append(Step(f"checkpoints of {size}", words, lines(40), measures=True))
    return found


def main(
    device: Annotated[Device, typer.Option(help="The GPU of this machine, none, or a simulated one.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the output of each step.")] = ROOT / "build" / "gpu",
    store: Annotated[Path, typer.Option(help="Folder for the checkpoints of the benchmark.")] = Path("/dev/shm"),
    only: Annotated[
        str | None, typer.Option(help="Only steps whose names have one of these words, as in GPT,copies.")
    ] = None,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    lock = (out / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"error: another run writes into {out}\n  try: give this one a folder with --out") from None
    path = [str(ROOT)]
    if device != "auto":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if device == "test":
        if reason := missing():
            raise SystemExit(f"error: {reason}")
        path.insert(0, str(PLUGIN))
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    wanted = chosen(steps(device, out, str(store)), only)
    began: list[Step] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for one in (each for each in wanted if not each.measures):
            one.begin(out)
            began.append(one)
        wait(began, out)
        for one in (each for each in wanted if each.measures):
            one.begin(out)
            began.append(one)
            wait([one], out)
    finally:
        for one in began:
            if one.process is not None and one.process.returncode is None:
                one.why = "interrupted"
                one.end()
                say(one, out)
    table = Table("step", "passed", "s", title=TITLES[device])
    for one in wanted:
        table.add_row(one.name, "yes" if one.passed else "NO", f"{one.lasted_s:.0f}")
    Console().print(table)
    raise SystemExit(0 if all(one.passed for one in wanted) else 1)


def chosen(found: Sequence[Step], only: str | None) -> Sequence[Step]:
    """
    Return the steps that `only` names.

    Raises:
        SystemExit: a word names no step.
    """
    words = [] if only is None else only.split(",")
    for word in words:
        if not word or not any(word in one.name for one in found):
            names = ", ".join(one.name for one in found)
            raise SystemExit(f"error: --only {word!r} names no step\n  try: a word of these names: {names}")
    return [one for one in found if not words or any(word in one.name for word in words)]


def wait(began: Sequence[Step], out: Path) -> None:
    """Wait until all have ended, and print the result of each when it has."""
    running = list(began)
    while running:
        for one in [each for each in running if each.is_over()]:
            running.remove(one)
            say(one, out)
        time.sleep(LOOKS_EVERY_S)


def say(step: Step, out: Path) -> None:
    """Print a step's result, or the end of its output if it failed."""
    output = step.log(out).read_text(errors="replace")
    try:
        told = step.told(output) if step.passed else output[-3000:]
    except (ValueError, LookupError):
        told = output[-3000:]
    how = "passed" if step.passed else f"FAILED ({step.why})" if step.why else "FAILED"
    print(f"--- {step.name}: {how} after {step.lasted_s:.0f} s\n{told}", flush=True)


if __name__ == "__main__":
    typer.run(main)
