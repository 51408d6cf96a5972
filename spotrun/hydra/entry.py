"""
Makes Hydra's `${now:%Y-%m-%d}` stand for the time of the run's first start, in each attempt and on each instance.

With `${now:…}`, Hydra puts the time into the name of a job's output folder (`outputs/2026-01-31/12-00-00`). If this
were the current time, each attempt would write to a new folder. It would not find the files that spotrun has restored
from the checkpoint, because these are in the folder of the first start.
"""

from __future__ import annotations

import functools
import os
from datetime import datetime
from typing import Any

from spotrun.autoload import STARTED_VARIABLE


def install(module: Any) -> None:
    """
    Make `${now:…}` constant. `module` is `hydra.core.utils`. Its `setup_globals`, which Hydra calls before it reads a
    configuration, is wrapped. A second call of `install` has no effect.
    """
    original = module.setup_globals
    if STARTED_VARIABLE not in os.environ or hasattr(original, "names_by_the_run"):
        return
    started = datetime.fromisoformat(os.environ[STARTED_VARIABLE]).astimezone()

    @functools.wraps(original)
    def setup_globals() -> None:
        original()
        module.OmegaConf.register_new_resolver("now", started.strftime, use_cache=True, replace=True)

    setup_globals.names_by_the_run = True  # type: ignore[attr-defined]
    module.setup_globals = setup_globals
