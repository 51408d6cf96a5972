"""Names what prevents a training from changing its number of processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotrun.training.elastic.virtual_ranks import Share
from spotrun.training.framework import Problem

KEY = "virtual_ranks"
"""Entry of an elastic training's checkpoints with the number of its virtual ranks."""


SPARSE = Problem("the job is elastic, and a gradient is sparse", "make the nn.Embedding with sparse=False")


def of_training(framework: str, share: Share | None) -> Problem | None:
    """Return why this training cannot be elastic; None if it can, or if its job is not elastic."""
    if share is None:
        return None
    if framework == "transformers":
        return Problem(
            f"the job is elastic, and a training with {framework} cannot change its number of processes",
            "write the training with Loop or Lightning (docs/elastic.md), or remove elastic from the job",
        )
    if share.processes > share.total:
        return Problem(
            f"{share.processes} processes cannot share {share.total} virtual ranks",
            f"start a new run with elastic: {{virtual_ranks: {share.processes}}}, or train on fewer devices",
        )
    return None


def of_checkpoint(saved: Mapping[str, Any], processes: int, share: Share | None) -> Problem | None:
    """
    Return why the checkpoint does not fit: another number of processes or, in an elastic training, of virtual ranks.
    """
    virtual, before = saved.get(KEY), len(saved["ranks"])
    if virtual != (None if share is None else share.total):
        then, now = (
            f"has {each} virtual ranks" if each else "is not elastic" for each in (virtual, share and share.total)
        )
        way_out = f"write elastic: {{virtual_ranks: {virtual}}}" if virtual else "remove elastic from the job"
        return Problem(f"the checkpoint {then}, and this training {now}", f"{way_out}, or start a new run")
    if share is None and before != processes:
        return Problem(
            f"the number of processes is {before} in the checkpoint, and {processes} in this training",
            f"train with devices={before}, as before",
        )
    return None
