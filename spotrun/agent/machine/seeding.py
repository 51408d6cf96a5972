"""
Computes environment variables that give a script the same random seeds and the same date in each attempt of a run
(spotrun/autoload/sitecustomize.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import datetime

from spotrun.autoload import FOLDER, SEED_VARIABLE, STARTED_VARIABLE

HASHES = "PYTHONHASHSEED"
OF_LIGHTNING = "PL_GLOBAL_SEED"
PATH = "PYTHONPATH"


def variables(
    environment: Mapping[str, str], given: Mapping[str, str], run_uid: str, created_at: datetime
) -> dict[str, str]:
    """
    Return the environment variables to add to a trainer's `environment`:
    - a seed for random number generators, and a seed for Python's hashes, which decide the order of sets of strings.
      Both are computed from the run's uid. If the job's `envs` (`given`) set a seed, the job's value applies instead.
    - the time of the run's creation. A script that uses today's date, for example in file names, gets this date in each
      attempt.
    - the path of the file that applies these values in the trainer (spotrun/autoload/sitecustomize.py)

    If `environment` already contains the seed and the time, they are kept: `verify-resume` sets them there to give two
    runs the same values.
    """
    seed = given.get(OF_LIGHTNING) or environment.get(SEED_VARIABLE) or str(_number("generators", run_uid))
    paths = [str(FOLDER), *filter(None, [environment.get(PATH)])]
    return {
        HASHES: given.get(HASHES) or str(_number("hashes", seed)),
        SEED_VARIABLE: seed,
        STARTED_VARIABLE: environment.get(STARTED_VARIABLE) or created_at.isoformat(),
        PATH: os.pathsep.join(paths),
    }


def _number(what: str, seed: str) -> int:
    """Return a 32-bit number, which Python and numpy accept as a seed."""
    return int.from_bytes(hashlib.sha256(f"{what} {seed}".encode()).digest()[:4], "little")
