"""
Makes the tags that let a run's IAM role read the run's secrets. Each tag names one parameter: the policy in
infra/aws/account.yaml lets a role read only the parameters that its tags name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spotrun.secrets.reference import PARAMETERS, Reference
from spotrun.units import Unreadable

KEY = "spotrun:secret-"
"""
Prefix of these tags' names, followed by a number, counted from 1. A tag's value is a parameter's path without the
prefix PARAMETERS.
"""
SECRETS_MAX = 20
"""
Maximum number of secrets that a run's role can read. A policy cannot check whether a list contains a value, so
spotrun's policy has a separate line for each numbered tag. AWS limits a policy to 6,144 characters, which limits the
number of these lines.
"""
PATH_MAX = 256
"""
Maximum length of a tag's value, in characters:
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_tags.html#id_tags_rules.
"""


def secret_tags(references: Iterable[Reference]) -> dict[str, str]:
    """
    Return the tags, keyed by name. A secret outside PARAMETERS gets no tag, because the policy lets no run's role read
    it.
    """
    return {f"{KEY}{number}": path for number, path in enumerate(_paths(references), 1)}


def refusals(references: Iterable[Reference]) -> Iterator[Unreadable]:
    """Yield the reasons why a role's tags cannot name all of these secrets."""
    paths = _paths(references)
    if len(paths) > SECRETS_MAX:
        what = f"names {len(paths)} parameters, but a run's role can read only {SECRETS_MAX}"
        yield Unreadable(
            what, "put several values into one parameter, as JSON, or name an aws.instance_profile", at=("secrets",)
        )
    for path in paths:
        if len(path) > PATH_MAX:
            what = f"{PARAMETERS}{path} is too long for a tag of the role: {len(path)} characters, more than {PATH_MAX}"
            yield Unreadable(what, "give the parameter a shorter name", at=("secrets",))


def _paths(references: Iterable[Reference]) -> list[str]:
    below = {each.name.removeprefix(PARAMETERS) for each in references if each.name.startswith(PARAMETERS)}
    return sorted(below)
