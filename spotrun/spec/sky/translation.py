"""The result of translating a SkyPilot task file: the translated job, and the problems that were found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spotrun.spec.problems import Key, Problem, dotted


@dataclass
class Translation:
    """
    A translation in progress. `data` is the content of the file, which the translation changes in place. `unreadable`
    has the keys whose values YAML could not read.

    `taken` describes, for each translated SkyPilot key, what became of it. `spelled` maps a spotrun key to the key that
    the user wrote. `cleared` has the keys whose values are correct in a SkyPilot file: problems that the YAML reader
    has reported about them are ignored.
    """

    data: dict[str, Any]
    unreadable: set[Key]
    taken: dict[Key, str] = field(default_factory=dict)
    spelled: dict[Key, Key] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    cleared: list[Key] = field(default_factory=list)

    def section(self, name: str) -> dict[str, Any] | None:
        """
        Return the mapping at `name`. If the file has no such key, add an empty mapping first. Return None if the value
        is not a mapping.
        """
        found = self.data.setdefault(name, {})
        return found if isinstance(found, dict) else None

    def refuse(self, key: Key, message: str, suggestion: str | None) -> None:
        self.problems.append(Problem(key, message, suggestion))

    def put(self, ours: Key, value: object, theirs: Key) -> bool:
        """
        Set spotrun's key `ours` in place of SkyPilot's key `theirs`. If the file has both, add a problem and return
        False.
        """
        holder = self.data if len(ours) == 1 else self.section(str(ours[0]))
        if holder is None:
            return False
        name = str(ours[-1])
        if name in holder:
            other = name if ours[:-1] == theirs[:-1] else dotted(ours)
            self.refuse(theirs, f"cannot be combined with {other}", f"keep one of {theirs[-1]} and {other}")
            return False
        holder[name] = value
        self.spelled[ours] = theirs
        return True

    def say(self, key: Key, *words: str) -> None:
        self.taken[key] = ", ".join(words)
