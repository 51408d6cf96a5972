"""
The same training under the same SIGKILLs: plain Lightning with a ModelCheckpoint in S3, and spotrun.

    make interruptions        or        python -m benchmarks.interruptions --runs 10 [--json OUT]

Plain Lightning is what a careful user writes: a checkpoint every few steps in the bucket (s3fs), and a loop that
starts the script again from the newest. It is killed at the steps at which spotrun's trainer, agent, instance or runner
is, every other time while it saves. Both keep their checkpoints in one SeaweedFS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests import chaos
from tests.audit import Harm, harm
from tests.local_runs import JOBS

HERE = Path(__file__).parent
PEERS = HERE.parent / ".peers"
EVERY_STEPS = 25
"""As often as spotrun is told to commit: every 30 s, which pass 60 times as fast, at 20 ms a step."""
STARTS_IN_VAIN_MAX = 3


@dataclass(frozen=True)
class Result:
    """
    One training. `lost` counts checkpoints that were said to be saved and that no resume found again; `ended` is False
    where the script could not be started any more.
    """

    kills: int
    in_saves: int
    harm: Harm
    lost: int
    ended: bool
    identical: bool


class Stock:
    """A plain Lightning training in a folder, with its checkpoints at `uri`."""

    def __init__(self, folder: Path, uri: str, step_s: float) -> None:
        folder.mkdir(parents=True)
        self.folder, self.trace = folder, folder / "trace.txt"
        self._uri, self._step_s = uri, step_s

    def start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(PEERS), str(JOBS)])
        environment = os.environ | {
            "PYTHONPATH": paths,
            "TOLD": str(self.folder),
            "TRACE": str(self.trace),
            "OMP_NUM_THREADS": "1",
        }
        flags = {"--epochs": chaos.EPOCHS, "--step-s": self._step_s, "--every": EVERY_STEPS, "--to": self._uri}
        command = [sys.executable, str(JOBS / "stock.py"), *(str(word) for pair in flags.items() for word in pair)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def saving(self) -> bool:
        return (self.folder / "saving").exists()

    @property
    def weights(self) -> str:
        return (self.folder / "weights").read_text()

    def lost(self) -> int:
        """Checkpoints saved, and newer than what the next start resumed from."""
        saved: set[int] = set()
        lost = 0
        for word, step in map(str.split, (self.folder / "saves").read_text().splitlines()):
            if word == "saved":
                saved.add(int(step))
            else:
                lost += sum(one > int(step) for one in saved)
                saved = {one for one in saved if one <= int(step)}
        return lost


def straight(folder: Path, uri: str) -> tuple[dict[int, set[str]], str]:
    """Trace and weights of a plain training that nothing disturbs."""
    stock = Stock(folder, uri, 0)
    process = stock.start()
    if process.wait(chaos.RUN_WITHIN_S) != 0:
        raise RuntimeError(f"plain Lightning does not train:\n{(folder / 'log').read_text()[-2000:]}")
    return {int(line.split()[0]): {line} for line in stock.trace.read_text().splitlines()}, stock.weights


def disturbed(folder: Path, uri: str, seed: int, trace: dict[int, set[str]], weights: str) -> Result:
    stock = Stock(folder, uri, chaos.CHAOS_STEP_S)
    process = stock.start()
    done = []
    for kill in chaos.plan(seed):
        if not _reached(stock, process, kill):
            break
        process.kill()
        process.wait()
        done.append(kill)
        process = stock.start()
    ended = _goes_on_to_the_end(stock, process)
    return Result(
        kills=len(done),
        in_saves=sum(kill.in_upload for kill in done),
        harm=harm(stock.trace.read_text().splitlines(), trace, chaos.SAMPLES),
        lost=stock.lost(),
        ended=ended,
        identical=ended and stock.weights == weights,
    )


def _reached(stock: Stock, process: subprocess.Popen[bytes], kill: chaos.Kill) -> bool:
    give_up_at = time.monotonic() + chaos.RUN_WITHIN_S
    while process.poll() is None and time.monotonic() < give_up_at:
        if chaos.trained(stock.trace) >= kill.step and (not kill.in_upload or stock.saving):
            return True
        time.sleep(chaos.LOOK_EVERY_S)
    return False


def _goes_on_to_the_end(stock: Stock, process: subprocess.Popen[bytes]) -> bool:
    for _ in range(STARTS_IN_VAIN_MAX):
        if process.wait(chaos.RUN_WITHIN_S) == 0:
            return True
        process = stock.start()
    process.kill()
    process.wait()
    return False


# -- both, side by side ----------------------------------------------------------------------------------------------


def plain(folder: Path, uri: str, seed: int, trace: dict[int, set[str]], weights: str) -> Result:
    result = disturbed(folder, uri, seed, trace, weights)
    shutil.rmtree(folder)
    return result


def ours(folder: Path, uri: str, seed: int, wanted: chaos.Straight) -> Result:
    outcome = chaos.one(folder, uri, seed, wanted)
    return Result(
        kills=len(outcome.kills),
        in_saves=sum(kill.in_upload for kill in outcome.kills),
        harm=outcome.harm,
        lost=outcome.lost,
        ended=not any(what.startswith("exit code") for what in outcome.wrong),
        identical=not outcome.wrong,
    )


def main(
    runs: Annotated[int, typer.Option(help="How many trainings of each.")] = 10,
    first: Annotated[int, typer.Option(help="The first seed.")] = 1,
    jobs: Annotated[int, typer.Option(help="How many side by side.")] = 2,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the figures there too.")] = None,
) -> None:
    if not PEERS.is_dir():
        sys.exit("error: the peers are not installed\n  try: make interruptions")
    results: dict[str, list[Result]] = {"Lightning": [], "spotrun": []}
    with tempfile.TemporaryDirectory(prefix="spotrun-peers-") as name, chaos.stores(chaos.Kind.S3) as new_uri:
        folder = Path(name)
        trace, weights = straight(folder / "straight", new_uri())
        wanted = chaos.undisturbed(folder / "calm")
        with ProcessPoolExecutor(jobs) as pool:
            tasks = {}
            for seed in range(first, first + runs):
                one = pool.submit(plain, folder / f"plain-{seed}", new_uri(), seed, trace, weights)
                other = pool.submit(ours, folder / f"ours-{seed}", new_uri(), seed, wanted)
                tasks |= {one: ("Lightning", seed), other: ("spotrun", seed)}
            for task in as_completed(tasks):
                who, seed = tasks[task]
                results[who].append(task.result())
                print(f"{who}, seed {seed}: {task.result()}", flush=True)
    show(results)
    if json_to is not None:
        json_to.write_text(json.dumps({who: [asdict(one) for one in all_] for who, all_ in results.items()}, indent=1))


def show(results: dict[str, list[Result]]) -> None:
    table = Table(title="The same training, the same SIGKILLs, the same S3 server", title_justify="left")
    table.add_column("")
    for who in results:
        table.add_column(who, justify="right")
    for name, *figures in zip(*(row_names(), *(figures_of(found) for found in results.values())), strict=True):
        table.add_row(name, *figures)
    Console().print(table)


def row_names() -> Iterable[str]:
    return (
        "trainings that ended bit-identical",
        "trainings that ended at all",
        "SIGKILLs (while saving)",
        "checkpoints lost",
        "steps with other samples or values than undisturbed",
        "samples an epoch saw more than once",
        "samples an epoch never saw",
        "steps done once more",
    )


def figures_of(results: list[Result]) -> Iterator[str]:
    steps = chaos.STEPS * len(results)
    samples = chaos.EPOCHS * chaos.SAMPLES * len(results)
    yield f"{sum(one.identical for one in results)} of {len(results)}"
    yield f"{sum(one.ended for one in results)} of {len(results)}"
    yield f"{sum(one.kills for one in results)} ({sum(one.in_saves for one in results)})"
    yield str(sum(one.lost for one in results))
    yield f"{sum(one.harm.differ for one in results) / steps:.1%}"
    yield f"{sum(one.harm.twice for one in results) / samples:.1%}"
    yield f"{sum(one.harm.never for one in results) / samples:.1%}"
    yield f"{sum(one.harm.redone for one in results) / steps:.1%}"


if __name__ == "__main__":
    typer.run(main)
