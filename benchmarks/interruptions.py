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
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.batteries import chaos
from tests.support.audit import Harm, harm
from tests.support.repository import JOBS

HERE = Path(__file__).parent
PEERS = HERE.parent / ".peers"
EVERY_STEPS = 25
"""Steps between commits, as often as spotrun commits: every 30 s, which pass 60 times as fast, at 20 ms a step."""
STARTS_IN_VAIN_MAX = 3


@dataclass(frozen=True)
class Result:
    """
    One training, by `who`. `in_saves` counts the kills that hit while a checkpoint was being saved; `lost` counts
    checkpoints that were reported as saved and that no resume found again; `ended` is False if the script could not be
    started any more.
    """

    who: str
    seed: int
    kills: int
    in_saves: int
    harm: Harm
    lost: int
    ended: bool
    identical: bool


class Stock:
    """A plain Lightning training in a folder, with its checkpoints at `uri`; nothing of it outlives the block."""

    def __init__(self, folder: Path, uri: str, step_s: float) -> None:
        folder.mkdir(parents=True)
        self.folder, self.trace = folder, folder / "trace.txt"
        self._uri, self._step_s = uri, step_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Stock:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._mark.unlink(missing_ok=True)  # a script that was killed while it saved has left it
        paths = os.pathsep.join([str(PEERS), str(JOBS)])
        environment = os.environ | {
            "PYTHONPATH": paths,
            "TOLD": str(self.folder),
            "TRACE": str(self.trace),
            "OMP_NUM_THREADS": "1",
        }
        flags = {"--epochs": chaos.ALONE.epochs, "--step-s": self._step_s, "--every": EVERY_STEPS, "--to": self._uri}
        command = [
            sys.executable,
            str(HERE / "stock_script.py"),
            *(str(word) for pair in flags.items() for word in pair),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ends_well(self) -> bool:
        """Wait for the end; return whether it was a success."""
        assert self._process is not None
        return self._process.wait(chaos.RUN_WITHIN_S) == 0

    @property
    def saving(self) -> bool:
        """Return whether it saves a checkpoint, or did when it was killed."""
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self.folder / "saving"

    @property
    def weights(self) -> str:
        return (self.folder / "weights").read_text()

    def lost(self) -> int:
        """
        Return the number of checkpoints that were saved and are newer than the one that the next start resumed from.
        """
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
    """Return trace and weights of a plain training without disturbance."""
    with Stock(folder, uri, 0) as stock:
        stock.start()
        if not stock.ends_well():
            raise RuntimeError(f"plain Lightning does not train:\n{(folder / 'log').read_text()[-2000:]}")
        return {int(line.split()[0]): {line} for line in stock.trace.read_text().splitlines()}, stock.weights


def disturbed(stock: Stock, seed: int, trace: dict[int, set[str]], weights: str) -> Result:
    done = list(_kills_done(stock, chaos.plan(seed)))
    ended = _goes_on_to_the_end(stock)
    return Result(
        who="Lightning",
        seed=seed,
        kills=len(done),
        in_saves=sum(kill.in_upload for kill in done),
        harm=harm(stock.trace.read_text().splitlines(), trace, chaos.SAMPLES),
        lost=stock.lost(),
        ended=ended,
        identical=ended and stock.weights == weights,
    )


def _kills_done(stock: Stock, planned: list[chaos.Kill]) -> Iterator[chaos.Kill]:
    """Yield the kills that there was time for, and whether they hit a save. It runs again after each."""
    stock.start()
    for kill in planned:
        if not _reached(stock, kill):
            return
        stock.kill()
        yield replace(kill, in_upload=stock.saving)
        stock.start()


def _reached(stock: Stock, kill: chaos.Kill) -> bool:
    give_up_at = time.monotonic() + chaos.RUN_WITHIN_S
    while stock.runs and time.monotonic() < give_up_at:
        if chaos.trained(stock.trace) >= kill.step and (not kill.in_upload or stock.saving):
            return True
        time.sleep(chaos.LOOK_EVERY_S)
    return False


def _goes_on_to_the_end(stock: Stock) -> bool:
    for _ in range(STARTS_IN_VAIN_MAX):
        if stock.ends_well():
            return True
        stock.start()
    return False


# -- both, side by side ----------------------------------------------------------------------------------------------


def plain(folder: Path, uri: str, seed: int, trace: dict[int, set[str]], weights: str) -> Result:
    with Stock(folder, uri, chaos.CHAOS_STEP_S) as stock:
        result = disturbed(stock, seed, trace, weights)
    shutil.rmtree(folder)
    return result


def ours(folder: Path, uri: str, seed: int, wanted: chaos.Straight) -> Result:
    outcome = chaos.one(folder, uri, seed, wanted)
    return Result(
        who="spotrun",
        seed=seed,
        kills=len(outcome.kills),
        in_saves=sum(kill.in_upload for kill in outcome.kills),
        harm=outcome.harm,
        lost=outcome.lost,
        ended=not any(what.startswith("exit code") for what in outcome.wrong),
        identical=not outcome.wrong,
    )


def main(
    runs: Annotated[int, typer.Option(help="How many trainings of each.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the first training; the next one has the next.")] = 1,
    jobs: Annotated[int, typer.Option(help="How many side by side.")] = 2,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the figures there too.")] = None,
) -> None:
    if not PEERS.is_dir():
        sys.exit("error: the peers are not installed\n  try: make interruptions")
    results: list[Result] = []
    try:
        for result in _of_both(range(seed, seed + runs), jobs):
            results.append(result)
            print(f"{len(results):3}/{2 * runs}  {_line(result)}", flush=True)
    finally:  # after a Ctrl-C too
        show({who: [result for result in results if result.who == who] for who in ("Lightning", "spotrun")})
        if json_to is not None:
            json_to.write_text(json.dumps([asdict(result) for result in results], indent=1))


def _of_both(seeds: range, jobs: int) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="spotrun-peers-") as name, chaos.stores(chaos.Kind.S3) as new_uri:
        folder = Path(name)
        trace, weights = straight(folder / "straight", new_uri())
        wanted = chaos.undisturbed(folder / "calm")
        tasks = (
            task
            for seed in seeds
            for task in (
                partial(plain, folder / f"plain-{seed}", new_uri(), seed, trace, weights),
                partial(ours, folder / f"ours-{seed}", new_uri(), seed, wanted),
            )
        )
        yield from chaos.side_by_side(jobs, tasks)


def _line(result: Result) -> str:
    verdict = "bit-identical" if result.identical else f"{result.harm.differ} of {chaos.ALONE.steps} steps differ"
    kills = f"{result.kills:2} kills, {result.in_saves:2} while it saved"
    return f"{result.who:9}  seed {result.seed:4}  {kills}  {result.harm.redone:4} steps redone  {verdict}"


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
    steps = chaos.ALONE.steps * max(1, len(results))
    samples = chaos.ALONE.epochs * chaos.SAMPLES * max(1, len(results))
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
