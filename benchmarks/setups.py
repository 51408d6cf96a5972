"""
Measures the set-up on the first instance of a run, and on later ones, which unpack the files of the first.

    python benchmarks/setups.py [--setup COMMAND] [--instances 3] [--store URI]

A run on the local cloud is interrupted as soon as its set-up is stored. The default COMMAND needs PyPI.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.arguments import at_least
from spotrun.folder.setup_cache import FOLDER
from spotrun.runs.open_run import OpenRun, open_run

SETUP = "pip install --quiet --no-cache-dir --ignore-installed pandas==2.3.3 scikit-learn==1.7.2"
JOB = """
name: setups
workdir: {folder}
setup: {setup}
train: {{run: sleep 3600}}
local: {{boot: 1s}}
"""


def spotrun(*words: str) -> str:
    command = [sys.executable, "-m", "spotrun", *words]
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def setups(store: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(spotrun("report", "setups", "--store", store, "--json"))["setups"]
    return found


def stored(run: OpenRun) -> bool:
    return any(found.key.endswith(".json") for found in run.store.list(f"{FOLDER}/"))


def interrupt(run: OpenRun) -> None:
    """Interrupt without notice; the trainer is gone, and the runner requests another instance."""
    attempt = run.ledger.refresh().current
    assert attempt is not None
    run.driver.interrupt(attempt.instance_id, None)  # type: ignore[attr-defined]


def measure(store: str, folder: Path, setup: str, instances: int) -> list[dict[str, Any]]:
    job = folder / "setups.yaml"
    work = folder / "work"
    work.mkdir()
    (work / "train.py").touch()
    job.write_text(JOB.format(folder=work, setup=json.dumps(setup)))
    spotrun("launch", str(job), "-y", "-d", "--store", store)
    try:
        for number in range(1, instances + 1):
            while len(setups(store)) < number or not stored(open_run("setups", store)):
                time.sleep(0.5)
            if number < instances:
                interrupt(open_run("setups", store))
        return setups(store)
    finally:
        spotrun("down", "setups", "--store", store, "-y")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", default=SETUP, metavar="COMMAND")
    parser.add_argument("--instances", type=at_least(1), default=3)
    parser.add_argument("--store", metavar="URI")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPOTRUN_LOCAL_CLOUD"] = f"{folder}/cloud"
        for setup in measure(options.store or f"{folder}/runs", Path(folder), options.setup, options.instances):
            size = f"{setup['packed_bytes'] / 1e6:,.0f} MB"
            print(f"attempt {setup['attempt']:4}: {setup['how']:8} {setup['seconds']:7.1f} s  {size}")


if __name__ == "__main__":
    main()
