"""
Battery: the state of commands under 1,000 kills, and how little of a large one is sent again.

    make battery NAME=state-folder

Programs that check their own files are killed at random moments, each time on another instance, which has the state of
the newest checkpoint. Looks, freezes, sending and put-backs are the real ones. It fails at the first mixture.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotrun.agent.files import quiescence
from spotrun.store.local import LocalStore
from tests.support.memory_store import MemoryStore
from tests.support.repository import JOBS
from tests.support.state_bench import StateRun

KILLS, LINES = 1000, 4
"""So many kills in all, on so many instances at a time."""
REST_S = 0.1
FILES, FILE_BYTES, CHANGED_ONE_OF, SENT_SHARE_MAX = 2000, 512 << 10, 100, 0.02


def killed(folder: Path, seed: int, kills: int) -> Counter[str]:
    rng, seen = random.Random(seed), Counter[str]()
    run = StateRun(folder, MemoryStore())
    for number in range(kills):
        instance = run.instance()
        if seed % 2:
            words = [str(JOBS / "pairs.py"), "out", "100000", f"rests={rng.choice([0.05, 0.2, 0.3])}", "gap=0.03"]
        else:
            words = [str(JOBS / "ledgers.py"), "out"]
        instance.start(words)
        kind = "of two files" if seed % 2 else "of databases"
        seen[f"checkpoints {kind}"] += instance.keep(rng.uniform(0.2, 1.5))
        said = instance.kill()
        instance.close()
        seen["kills"] += 1
        seen["mixtures"] += "MIXTURE" in said
        seen["resumed"] += run.history.state.latest_commit() is not None
        if "MIXTURE" in said:
            print(f"seed {seed}, kill {number}: {said}")
        shutil.rmtree(instance.folder)
    return seen


def sent_again(folder: Path) -> float:
    """The share of a state that is sent where one in a hundred of its files has changed."""
    run = StateRun(folder, LocalStore(folder / "store"))
    instance = run.instance()
    for number in range(FILES):
        where = instance.work / "out" / f"{number % 20}"
        where.mkdir(exist_ok=True)
        (where / f"{number}.bin").write_bytes(os.urandom(FILE_BYTES))
    began_s = time.monotonic()
    whole = instance.last()
    took_s = time.monotonic() - began_s
    for number in range(0, FILES, CHANGED_ONE_OF):
        (instance.work / "out" / f"{number % 20}" / f"{number}.bin").write_bytes(os.urandom(FILE_BYTES))
    began_s = time.monotonic()
    again = instance.last()
    assert whole is not None
    assert again is not None
    share = again.sent_bytes / whole.size_bytes
    print(f"{FILES:,} files, {whole.size_bytes / 1e9:.2f} GB in {took_s:.1f} s; one in {CHANGED_ONE_OF} changed:")
    print(f"  {again.sent_bytes / 1e6:.1f} MB sent, {share:.2%}, in {time.monotonic() - began_s:.2f} s")
    began_s = time.monotonic()
    instance.watch.look()
    print(f"  a look takes {1000 * (time.monotonic() - began_s):.0f} ms")
    instance.close()
    return share


def main(kills: int = KILLS) -> int:
    quiescence.REST_MIN_S, quiescence.REST_S = REST_S, REST_S
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(LINES) as pool:
        lines = [(Path(folder) / str(seed), seed, kills // LINES) for seed in range(LINES)]
        seen = sum(pool.map(lambda line: killed(*line), lines), Counter[str]())
        print(", ".join(f"{count:,} {what}" for what, count in sorted(seen.items())))
    with tempfile.TemporaryDirectory() as folder:
        share = sent_again(Path(folder))
    return int(bool(seen["mixtures"]) or share > SENT_SHARE_MAX)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
