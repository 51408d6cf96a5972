"""
Finds, in the clouds' answers, the lifecycle rules of a bucket that would remove a run's objects.

A rule counts if it may affect any object below a prefix, even if it applies only to a part of the prefix, or only to
large objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Rule = Mapping[str, Any]
_OUT_OF_REACH = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""
Storage classes from which an object must be restored, which takes hours, before it can be read. GLACIER_IR is not one
of them.
"""
_OLDER_VERSIONS_ONLY = ("numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore")


def s3_expiries(rules: Iterable[Rule], root: str) -> tuple[str, ...]:
    """
    Describe the rules in an answer to GetBucketLifecycleConfiguration that affect objects below `root`. spotrun's
    objects have no tags, so rules for tagged objects do not count.
    """
    return tuple(words for rule in rules if _s3_reaches(rule, root) for words in _s3_acts(rule))


def _s3_reaches(rule: Rule, root: str) -> bool:
    chosen = rule.get("Filter", {})
    both = chosen.get("And", chosen)
    tagged = "Tag" in both or both.get("Tags")
    prefix = both.get("Prefix", rule.get("Prefix", ""))
    return rule.get("Status") == "Enabled" and not tagged and _overlap(prefix, root)


def _s3_acts(rule: Rule) -> Iterator[str]:
    name = f"rule {rule.get('ID', '')!r}"
    expiration = rule.get("Expiration", {})
    if "Days" in expiration or "Date" in expiration:
        yield f"{name} deletes {_s3_when(expiration)}"
    for transition in rule.get("Transitions", ()):
        if transition.get("StorageClass") in _OUT_OF_REACH:
            yield f"{name} moves to {transition['StorageClass']} {_s3_when(transition)}"


def _s3_when(act: Rule) -> str:
    return f"after {act['Days']} day{'s' * (act['Days'] != 1)}" if "Days" in act else f"on {act.get('Date')}"


def s3_older_versions_days(rules: Iterable[Rule], root: str) -> int | None:
    """
    Return the number of days after which all older versions below `root` are deleted; None if no rule deletes them all.
    """
    days = [rule["NoncurrentVersionExpiration"].get("NoncurrentDays") for rule in rules if _s3_forgets(rule, root)]
    return min(days, default=None)


def _s3_forgets(rule: Rule, root: str) -> bool:
    chosen = rule.get("Filter", {})
    prefix = chosen.get("Prefix", rule.get("Prefix", ""))
    acts = rule.get("NoncurrentVersionExpiration", {})
    return (
        rule.get("Status") == "Enabled"
        and set(chosen) <= {"Prefix"}
        and root.startswith(prefix)
        and set(acts) == {"NoncurrentDays"}
    )


def gcs_expiries(rules: Iterable[Rule], root: str) -> tuple[str, ...]:
    """
    Describe the rules of a GCS bucket that delete live objects below `root`. Rules that change the storage class do not
    count, because GCS serves objects of any class immediately.
    """
    return tuple(f"a rule deletes objects with {dict(_condition(rule))}" for rule in rules if _gcs_deletes(rule, root))


def _gcs_deletes(rule: Rule, root: str) -> bool:
    condition = _condition(rule)
    if rule.get("action", {}).get("type") != "Delete" or condition.get("isLive") is False:
        return False
    if any(condition.get(name) for name in _OLDER_VERSIONS_ONLY):
        return False
    prefixes = condition.get("matchesPrefix") or [""]
    return any(_overlap(prefix, root) for prefix in prefixes)


def _condition(rule: Rule) -> Rule:
    condition: Rule = rule.get("condition", {})
    return condition


def _overlap(prefix: str, root: str) -> bool:
    return prefix.startswith(root) or root.startswith(prefix)
