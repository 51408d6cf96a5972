"""The plan of the measurements: which variants, on which models, how often."""

from __future__ import annotations

import random
from dataclasses import dataclass

EVERY_STEPS = 20
RESTORES = 1
"""Restores in each block; the median of all rounds counts."""
ROUNDS_MIN = 5
"""Minimum rounds: fewer may show chance, however close together they are."""
MEASURED, SAVED, RESTORED, BEGUN = "measured.json", "saved.json", "restored.json", "begun.json"
DIGESTS_WANTED, DIGESTS = "digests-wanted", "digests.json"
"""Files between a trainer and the measuring process."""


@dataclass(frozen=True)
class Plan:
    """
    The plan of one model: `checkpoints` while it trains, and `notices` times the machine is taken away. `store_gb` is
    more than any variant leaves in the store of its state.
    """

    checkpoints: int
    notices: int
    store_gb: int

    @property
    def steps(self) -> int:
        """The measured steps: a stretch without a checkpoint, then one for each."""
        return EVERY_STEPS * (self.checkpoints + 1) - 1


PLANS = {
    "tiny": Plan(checkpoints=6, notices=2, store_gb=2),
    "resnet50": Plan(checkpoints=4, notices=2, store_gb=4),
    "gpt-100mb": Plan(checkpoints=6, notices=1, store_gb=2),
    "gpt-400mb": Plan(checkpoints=6, notices=1, store_gb=6),
    "gpt": Plan(checkpoints=3, notices=2, store_gb=12),
    "gpt-4gb": Plan(checkpoints=3, notices=1, store_gb=40),
    "gpt-8gb": Plan(checkpoints=3, notices=1, store_gb=80),
    "tiny-256": Plan(checkpoints=6, notices=2, store_gb=2),
}

VARIANTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "pl_local": (),
    "pl_s3": ("s3fs",),
    "pl_async_s3": ("s3fs",),
    "dcp_thread_s3": ("s3fs",),
    "dcp_process_s3": ("s3fs",),
    "dcp_s3torchconnector": ("s3torchconnector",),
    "ours": (),
    "ours_attributes": (),
    "ours_files": (),
    "ours_all": (),
}
"""The packages that each needs besides spotrun's own."""


@dataclass(frozen=True)
class Burden:
    """
    The training's burden besides its state: attributes in plain Python, and files in its work folder that it wrote.
    """

    attributes: int = 0
    files: int = 0
    file_bytes: int = 0
    """Bytes of all files together."""


BURDENS = {
    "ours_attributes": Burden(attributes=2_000),
    "ours_files": Burden(files=8, file_bytes=1 << 30),
    "ours_all": Burden(attributes=2_000, files=100, file_bytes=10 << 20),
}


def room_gb(models: list[str], variants: list[str]) -> float:
    """Return more gigabytes than any of the variants leaves in the store of any of the models, its files included."""
    file_bytes = max((BURDENS[one].file_bytes for one in variants if one in BURDENS), default=0)
    return max(PLANS[model].store_gb for model in models) + file_bytes / 1e9


def blocks(variants: list[str], rounds: int, seed: int) -> list[list[str]]:
    """
    Return the variants of each round. Each round has every variant and the training without checkpoints once, in an
    order of its own: a drift or a periodic disturbance hits no variant alone.
    """
    order = random.Random(seed)
    each = ["none", *(one for one in variants if one != "none")]
    return [order.sample(each, len(each)) for _ in range(rounds)]
