"""
Every failure that a user of spotrun can meet, and its exit code.

    SpotrunError                 1   anything below; catch this at the door
    ├── SpecInvalid              2   the YAML or a flag is wrong; nothing was started
    ├── RunNotFound              3   no run of that id, name or address
    ├── RunEnded                 4   the run failed, or was stopped, before it was complete
    ├── StoreError               5   the object store cannot be used
    │   ├── StoreUnavailable         a passing fault: retry until a deadline
    │   │   └── LoginExpired         until somebody logs in anew: wait for it, but do not ask at once again
    │   ├── ObjectMissing            no object of that name
    │   ├── LedgerVersionUnknown     another version of spotrun wrote it: that one reads it
    │   └── LedgerDamaged        8   an entry is missing, moved or not what was written: nobody may append
    ├── CheckpointDamaged        6   no checkpoint can be read back whole
    ├── NotIdentical             9   an interrupted training is not the straight one
    ├── LimitExceeded           10   a figure of the report is as fail_if says that it must not be
    ├── NightUnderWay           11   the night before still goes on: none was begun
    ├── BillUnexplained         12   the cloud has charged what the ledger cannot explain
    └── CloudError               7   the cloud refused
        ├── InsufficientCapacity     this offering has none now      -> try another offering
        ├── QuotaExceeded            the account may not have it     -> another region may work
        ├── CloudUnavailable         throttled, 5xx, network         -> try again later
        ├── AccessDenied             credentials or permissions      -> stop; retrying cannot help
        ├── IdentityUnknown          whom the instance is to be      -> wait, where it was made just now
        └── LaunchTokenSpent         the token's instance is gone    -> that launch is over

Exit code 130 is an interrupt by Ctrl-C. Bugs are assertions and have no class here.
"""

from __future__ import annotations

from typing import ClassVar


class SpotrunError(Exception):
    """
    A failure told as a small letter: what failed (with the values), and what to type next.

    `hint` continues the sentence "try: …" and is shown on a line of its own.
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
