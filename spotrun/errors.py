"""
Every failure that a user of spotrun can meet, with its exit code.

    SpotrunError                 1   the base of all below
    ├── SpecInvalid              2   the YAML or a flag is wrong; nothing was started
    ├── RunNotFound              3   no run of that id, name or address
    ├── RunEnded                 4   the run failed, or was stopped, before it was complete
    ├── StoreError               5   the object store cannot be used
    │   ├── StoreUnavailable         a passing fault: retry until a deadline
    │   │   └── LoginExpired         somebody has to log in again: wait, and do not retry at once
    │   ├── ObjectMissing            no object of that name
    │   ├── LedgerVersionUnknown     another version of spotrun wrote it: read it with that one
    │   └── LedgerDamaged        8   an entry is missing, moved or changed: nobody may append
    ├── CheckpointDamaged        6   no checkpoint can be read back intact
    ├── NotIdentical             9   an interrupted training differs from the uninterrupted one
    ├── LimitExceeded           10   the condition of fail_if holds for the report
    ├── NightUnderWay           11   the last nightly run is still going: none was started
    ├── BillUnexplained         12   the cloud charged what the ledger cannot explain
    └── CloudError               7   the cloud refused
        ├── InsufficientCapacity     this offering has none now      -> try another offering
        ├── QuotaExceeded            the account may not have it     -> another region may work
        ├── CloudUnavailable         throttled, 5xx, network         -> try again later
        ├── AccessDenied             credentials or permissions      -> stop; retrying cannot help
        ├── IdentityUnknown          the instance's role is unknown   -> wait, if it was made just now
        └── LaunchTokenSpent         the token's instance is gone    -> that launch is over

Exit code 130 is an interrupt by Ctrl-C. Bugs are assertions and have no class here.
"""

from __future__ import annotations

from typing import ClassVar


class SpotrunError(Exception):
    """
    A failure as a small letter to the user: what failed, with the values, and what to type next.

    `hint` continues "try: …", on a line of its own.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  try: {self.hint}"


class SpecInvalid(SpotrunError):
    exit_code = 2


class RunNotFound(SpotrunError):
    exit_code = 3


class RunEnded(SpotrunError):
    exit_code = 4


class StoreError(SpotrunError):
    exit_code = 5


class StoreUnavailable(StoreError):
    pass


class LoginExpired(StoreUnavailable):
    pass


class ObjectMissing(StoreError):
    pass


class LedgerVersionUnknown(StoreError):
    pass


class LedgerDamaged(StoreError):
    exit_code = 8


class CheckpointDamaged(SpotrunError):
    exit_code = 6


class NotIdentical(SpotrunError):
    exit_code = 9


class LimitExceeded(SpotrunError):
    exit_code = 10


class NightUnderWay(SpotrunError):
    exit_code = 11


class BillUnexplained(SpotrunError):
    exit_code = 12


class CloudError(SpotrunError):
    exit_code = 7


class InsufficientCapacity(CloudError):
    pass


class QuotaExceeded(CloudError):
    pass


class CloudUnavailable(CloudError):
    pass


class AccessDenied(CloudError):
    pass


class IdentityUnknown(CloudError):
    pass


class LaunchTokenSpent(CloudError):
    pass
