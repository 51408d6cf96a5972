"""Recognizes folders of git, Python and conda by their content, under any name."""

from __future__ import annotations

import os
import stat

_MARKS = {"HEAD": "git", "pyvenv.cfg": "Python", "conda-meta/history": "conda"}
"""Files that only git repositories and environments contain. With one more file, a folder with `HEAD` may be git's."""


def tool_of(folder: int | str) -> str:
    """Return the tool that obeys the files in a folder, or would with one more file; "" if none does."""
    return next((tool for mark, tool in _MARKS.items() if _has_file(folder, mark)), "")


def is_git_folder(folder: str) -> bool:
    """Return True for a folder that git itself accepts as a repository, or as the git folder of one work tree."""
    if not _has_file(folder, "HEAD"):
        return False
    found = {name for name in ("objects", "refs", "commondir") if os.path.lexists(os.path.join(folder, name))}
    return "commondir" in found or len(found) == 2


def _has_file(folder: int | str, name: str) -> bool:
    """Return True for a file, or a link even if broken. A folder does not count: `head` may be a part of a model."""
    try:
        if isinstance(folder, str):
            facts = os.stat(os.path.join(folder, name), follow_symlinks=False)
        else:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return not stat.S_ISDIR(facts.st_mode)
