"""
Finds who can read the keys of runs in a bucket, according to the bucket's own policy. With the key of a run, a person
can sign as the run's owner (protocol 31). Policies outside of the bucket, such as those of a project, are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

KEYS = "keys"
"""The folder of a store that has the keys of runs."""
EVERY_READER = "everyone who may read the bucket"
_READS_NO_OBJECT = frozenset(
    f"roles/storage.{name}"
    for name in ("legacyBucketOwner", "legacyBucketReader", "legacyBucketWriter", "objectCreator")
)
_ADMINISTRATORS = ("projectEditor:", "projectOwner:")
_NAMES_OTHERS = frozenset({"ArnNotEquals", "ArnNotLike", "StringNotEquals", "StringNotLike"})


def s3_key_readers(policy: Mapping[str, Any], bucket: str, root: str) -> tuple[str, ...]:
    """
    Return () if a bucket's policy denies the keys below `root` to all principals except those that it names. Otherwise,
    IAM alone decides who reads them.
    """
    key = f"{bucket}/{root}{KEYS}/0"
    return () if any(_denies(each, key) for each in _listed(policy.get("Statement"))) else (EVERY_READER,)


def _denies(statement: Mapping[str, Any], key: str) -> bool:
    """Return True if the statement denies everyone to read the object `key`, except principals that it names."""
    condition = statement.get("Condition", {})
    return (
        statement["Effect"] == "Deny"
        and statement.get("Principal") in ("*", {"AWS": "*"})
        and any(fnmatchcase("s3:GetObject", each) for each in _listed(statement.get("Action")))
        and any(fnmatchcase(key, each.partition(":::")[2]) for each in _listed(statement.get("Resource")))
        and {*condition} <= _NAMES_OTHERS
        and {name.lower() for names in condition.values() for name in names} == {"aws:principalarn"}
    )


def gcs_key_readers(bindings: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """
    Return the members, with their roles, that a bucket's policy allows to read keys and that are no runners. Leave out
    the project's Owners and Editors. A grant counts unless its condition mentions keys, or its role is known to read no
    object.
    """
    runners = {member for each in bindings if each["role"].endswith("/spotrunBucket") for member in each["members"]}
    found = [
        (member, each["role"])
        for each in bindings
        if each["role"] not in _READS_NO_OBJECT and "/roles/spotrun" not in each["role"]
        if f"/{KEYS}/" not in (each.get("condition") or {}).get("expression", "")
        for member in each["members"]
    ]
    others = [each for each in found if each[0] not in runners and not each[0].startswith(_ADMINISTRATORS)]
    return tuple(f"{member} ({role})" for member, role in sorted(others))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
