"""Variables that let a script begin alike in each attempt of a run: see spotrun/autoload/sitecustomize.py."""

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
    Return the variables to add to a trainer's `environment`. Sets and dicts of texts get their order, and generators
    their seed, from the run; values of either in the job's `envs`, which are `given`, go first. Names that contain the
    day have that of the run's first.

    An environment may name the seed and the day, so that two runs have the same (`verify-resume`).
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
    """Return a number of 32 bits, as Python and numpy take."""
    return int.from_bytes(hashlib.sha256(f"{what} {seed}".encode()).digest()[:4], "little")
