"""
Chooses files of a folder by their paths, with patterns like those in `.gitignore`.

    best.ckpt           a file or folder of that name, in any folder
    logs/*.csv          a pattern with a slash inside is matched from the top of the folder
    lightning_logs/     everything below a folder
    **/last.ckpt        ** stands for any number of folders, or none
    !data/              leaves out what the pattern matches

If several patterns match a path, the last of them decides. A file that no pattern matches is chosen only if the first
pattern begins with `!`. `*` and `?` do not match a slash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from spotrun.units import Unreadable, shown

LENGTH_MAX = 500
PATHS_MAX = 1 << 14
"""
Maximum number of paths for which a function of `chooser` remembers whether they are chosen. The cache helps because the
same folder is scanned again and again.
"""
_OPEN = re.compile(r"\[(?!!?\]?[^\]]*\])")
"""
Pattern of an opening bracket that is never closed. A file pattern with such a bracket is refused, because fnmatch does
not always treat this bracket as an ordinary character.
"""


def read_pattern(value: object) -> str:
    """
    Read a pattern that chooses files of the work folder.

    Raises:
        Unreadable: `value` is not a valid pattern.
    """
    if not isinstance(value, str) or not value.strip():
        raise Unreadable("must be the pattern of a file", 'write it like best.ckpt or "*.csv"')
    parts = value.removeprefix("!").split("/")
    if parts[0] in ("", "~"):
        raise Unreadable(f"{shown(value)} is not inside the work folder", "write it relative to the work folder")
    if ".." in parts:
        raise Unreadable(f"{shown(value)} leads out of the work folder", "remove the ..")
    if any(map(_OPEN.search, parts)):
        raise Unreadable(f"{shown(value)} has a [ without its ]", "write [[] for the bracket itself")
    if not value.isprintable() or len(value) > LENGTH_MAX:
        raise Unreadable(f"{shown(value)} is not a pattern", "write a shorter one, on one line")
    return value


def chooser(patterns: Sequence[str]) -> Callable[[str], bool]:
    """
    Return a function that decides whether a path is chosen. Paths are relative to the folder and use slashes. Without
    patterns, no path is chosen.
    """
    rules = [(not pattern.startswith("!"), _fits(pattern.removeprefix("!"))) for pattern in patterns]
    otherwise = bool(rules) and not rules[0][0]

    def chosen(path: str) -> bool:
        return next((wanted for wanted, fits in reversed(rules) if fits(path)), otherwise)

    return lru_cache(PATHS_MAX)(chosen)


def _fits(pattern: str) -> Callable[[str], bool]:
    """
    Return a function that tests whether one pattern matches a path. Brackets in a pattern match one of the characters
    in them. A pattern with brackets also matches the path that is identical to the pattern.
    """
    plain = pattern.removeprefix("./")
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    inside = plain.endswith("/") or parts[-1:] == ["**"]
    if "/" not in pattern.rstrip("/"):
        parts = ["**", *parts]
    while parts[-1:] == ["**"]:
        parts.pop()

    def fits(path: str) -> bool:
        return path == plain or _lead(parts, path.split("/"), 1 if inside else 0)

    return fits


def _lead(parts: Sequence[str], names: Sequence[str], left: int) -> bool:
    """
    Return True if the pattern `parts` matches the beginning of the path `names`, and the path has at least `left` more
    names after that beginning.
    """
    if not parts:
        return len(names) >= left
    if parts[0] == "**":
        return any(_lead(parts[1:], names[skipped:], left) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _lead(parts[1:], names[1:], left)
