"""
Finds the lifecycle rules of a bucket that would remove the objects of a run.

A rule that would remove only some of the objects below the store's prefix counts too, such as a rule for one folder or
for large objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Rule = Mapping[str, Any]
_OUT_OF_REACH = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""
Storage classes whose objects cannot be read directly. They have to be restored first, which takes hours. GLACIER_IR is
not such a class.
"""
_OLDER_VERSIONS_ONLY = ("numNewerVersions", "daysSinceNoncurrentTime", "noncurrentTimeBefore")


def s3_expiries(rules: Iterable[Rule], root: str) -> tuple[str, ...]:
    """
    Describe the rules that affect objects below `root`. `rules` come from an answer to GetBucketLifecycleConfiguration.
    Rules for tagged objects are left out, because spotrun's objects have no tags.
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
    Return the number of days after which a rule deletes the older versions of all objects below `root`; None if no rule
    covers all of them.
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
    Describe the rules of a GCS bucket that delete current (not old) versions of objects below `root`. Rules that change
    the storage class are left out, because GCS can read objects of any class immediately.
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
