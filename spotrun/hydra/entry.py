"""
Makes Hydra's `${now:%Y-%m-%d}` the time of the run's first start, in each attempt and on each instance.

Hydra names a job's folder by `${now:…}` (`outputs/2026-01-31/12-00-00`). With the current time, a training that resumes
would use a different folder from the one with its checkpoint's files.
"""

from __future__ import annotations

import functools
import os
from datetime import datetime
from typing import Any

from spotrun.autoload import STARTED_VARIABLE


def install(module: Any) -> None:
    """
    Make `${now:…}` constant in `module`, which is `hydra.core.utils`. This replaces the module's `setup_globals`, which
    Hydra calls before it reads a configuration. Idempotent.
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
