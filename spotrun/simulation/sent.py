"""What a planned job sends to its bucket and reads from it, where that is in another region."""

from __future__ import annotations

import msgspec

from spotrun.offering import Offering
from spotrun.policy.cross_region import NO_TRANSFER, Transfer, transfer
from spotrun.run.events import RunCreated


class Sent(msgspec.Struct, frozen=True):
    """What passes between an instance and the bucket: a checkpoint of that size at each start and each `interval_s`."""

    created: RunCreated | None = None
    checkpoint_bytes: int = 0
    interval_s: float = 600.0

    def to(self, offering: Offering) -> Transfer:
        if self.created is None or not self.created.storage.crosses(offering.region):
            return NO_TRANSFER
        return transfer(self.created, offering.region, self.interval_s, self.checkpoint_bytes, self.checkpoint_bytes)

    def usd_per_hour(self, offering: Offering) -> float:
        return float(offering.price_usd_per_hour) + self.to(offering).usd_per_hour


NOTHING_SENT = Sent()
