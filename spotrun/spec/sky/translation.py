"""The result of translating a file in the words of SkyPilot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spotrun.spec.problems import Key, Problem, dotted


@dataclass
class Translation:
    """
    `data` is what a file says; it is changed in place. `unreadable` are the keys whose values YAML could not read.

    `taken` says what became of a key of SkyPilot's, and `spelled` has the user's key by ours. The problems that YAML
    had with the keys in `cleared` count for nothing.
    """

    data: dict[str, Any]
    unreadable: set[Key]
    taken: dict[Key, str] = field(default_factory=dict)
    spelled: dict[Key, Key] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    cleared: list[Key] = field(default_factory=list)

    def section(self, name: str) -> dict[str, Any] | None:
        """Return the mapping at `name`, made if the file has none; None if it is no mapping."""
        found = self.data.setdefault(name, {})
        return found if isinstance(found, dict) else None

    def refuse(self, key: Key, message: str, suggestion: str | None) -> None:
        self.problems.append(Problem(key, message, suggestion))

    def put(self, ours: Key, value: object, theirs: Key) -> bool:
        """Set our key, which stands for theirs; False if the file has ours too, which is a problem then."""
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
