"""
Translates the error messages of Slurm's programs into spotrun's errors. Slurm defines its messages in slurm_errno.c.
"""

from __future__ import annotations

from spotrun.clouds.slurm.commands import Answer
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, InsufficientCapacity, QuotaExceeded

_PASSING = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
    "Connection refused",
    "Communication connection failure",
    "Resource temporarily unavailable",
    "Slurm temporarily unable to accept job",
    "Unable to process configuration file",
    "Could not establish a configuration source",
)
_DENIED = (
    "Access/permission denied",
    "Invalid account",
    "Invalid qos",
    "Invalid user id",
    "User's group not permitted",
    "Protocol authentication error",
    "munge",
)
_QUOTA = ("Job violates accounting/QOS policy", "submit limit", "QOSMax", "AssocMax", "AssocGrp")
_NO_CAPACITY = ("Required partition not available", "Required node not available")
_RENAMED = "nvalid partition"


def fault(answer: Answer, what: str, partition: str = "") -> CloudError | None:
    """
    Return the error that Slurm's message stands for, if Slurm refused to do `what`; a plain CloudError if the message
    is unknown. Return None if Slurm did not refuse.
    """
    said = " ".join(answer.err.split()) or f"exit code {answer.code}"
    if answer.code == 0:
        return None
    message = f"Slurm did not {what}: {said}"
    if _has(said, _PASSING):
        return CloudUnavailable(message, hint="see `scontrol ping`, or wait for the controller")
    if _RENAMED in said:
        return CloudError(message, hint=f"`sinfo` shows the partitions; correct {partition} under slurm.partitions")
    if _has(said, _DENIED):
        return AccessDenied(
            message, hint="set slurm.account to your account, or name a partition that you are allowed to use"
        )
    if _has(said, _QUOTA):
        return QuotaExceeded(
            message, hint="see `sacctmgr show assoc where user=$USER`, or wait until some of your jobs have ended"
        )
    if _has(said, _NO_CAPACITY):
        return InsufficientCapacity(message)
    return CloudError(message)


def require_answer(answer: Answer, what: str) -> str:
    """
    Return the output of a Slurm program that only reads.

    Raises:
        CloudUnavailable: the program failed. Every failure counts as temporary, even one with a message such as
            "invalid partition": the program only reads, so there is no request that Slurm could refuse permanently.
        AccessDenied: this user has no right to run the program.
    """
    found = fault(answer, what)
    if found is None:
        return answer.out
    if isinstance(found, CloudUnavailable | AccessDenied):
        raise found
    raise CloudUnavailable(found.message, hint=found.hint)


def _has(said: str, words: tuple[str, ...]) -> bool:
    return any(each.lower() in said.lower() for each in words)
