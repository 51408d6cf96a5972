"""A run that begins from a Lightning checkpoint (`spotrun checkpoints import`, `spotrun launch --from`)."""

from __future__ import annotations

import os
from typing import Any

from spotrun import start_file


def begin(trainer: Any) -> None:
    """
    On a fresh start, in `Callback.setup`: let this fit() restore the file that the run begins from, if there is one,
    whatever path it was given.
    """
    path = os.environ.get(start_file.VARIABLE)
    if path is None:
        return
    connector = trainer._checkpoint_connector
    original = connector.resume_start

    def resume_start(checkpoint_path: Any = None, weights_only: Any = None) -> None:
        del connector.resume_start  # once only: a later validate(ckpt_path=…) is the user's
        original(path, weights_only=True)

    connector.resume_start = resume_start
