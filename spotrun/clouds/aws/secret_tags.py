"""
The tags of a run's role that name its secrets: the policy of infra/aws/account.yaml lets a role read the parameters
that these name, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spotrun.secrets.reference import PARAMETERS, Reference
from spotrun.units import Unreadable

KEY = "spotrun:secret-"
"""How the name of such a tag begins; a number from 1 on follows. Its value is a path without PARAMETERS."""
SECRETS_MAX = 20
"""A policy compares no lists, so ours has a line for each number. It may be 6,144 characters long."""
PATH_MAX = 256
"""Characters of a tag's value: https://docs.aws.amazon.com/IAM/latest/UserGuide/id_tags.html#id_tags_rules."""


def secret_tags(references: Iterable[Reference]) -> dict[str, str]:
    """The tags by their names. What is not below PARAMETERS gets none: no role of a run may read there."""
    return {f"{KEY}{number}": path for number, path in enumerate(_paths(references), 1)}


def refusals(references: Iterable[Reference]) -> Iterator[Unreadable]:
    """Why a role cannot name them all."""
    paths = _paths(references)
    if len(paths) > SECRETS_MAX:
        what = f"names {len(paths)} parameters, and the role of a run may read {SECRETS_MAX}"
        yield Unreadable(what, "keep several values in one, as JSON, or name an aws.instance_profile", at=("secrets",))
    for path in paths:
        if len(path) > PATH_MAX:
            what = f"{PARAMETERS}{path} is too long for a tag of the role: {len(path)} characters, not {PATH_MAX}"
            yield Unreadable(what, "give the parameter a shorter name", at=("secrets",))


def _paths(references: Iterable[Reference]) -> list[str]:
    below = {each.name.removeprefix(PARAMETERS) for each in references if each.name.startswith(PARAMETERS)}
    return sorted(below)
