"""Recognizes folders of git, Python and conda by their content, whatever their names are."""

from __future__ import annotations

import os
import stat

_MARKS = {"HEAD": "git", "pyvenv.cfg": "Python", "conda-meta/history": "conda"}
"""
Files by which a folder of a tool is recognized, each with its tool. A folder with the file `HEAD` may lack other files
of a git repository, but it is treated as one, because a fetched file could be the missing one.
"""


def tool_of(folder: int | str) -> str:
    """
    Return the tool whose folder this is, or could become with one more file; "" if it is no tool's. The tool would obey
    any files that were written there.
    """
    return next((tool for mark, tool in _MARKS.items() if _has_file(folder, mark)), "")


def is_git_folder(folder: str) -> bool:
    """Return True for a folder that git accepts as a repository, or as the git folder of a work tree."""
    if not _has_file(folder, "HEAD"):
        return False
    found = {name for name in ("objects", "refs", "commondir") if os.path.lexists(os.path.join(folder, name))}
    return "commondir" in found or len(found) == 2


def _has_file(folder: int | str, name: str) -> bool:
    """
    Return True for a file or a link, even a broken link. A folder does not count: a model may have a part named `head`.
    """
    try:
        if isinstance(folder, str):
            facts = os.stat(os.path.join(folder, name), follow_symlinks=False)
        else:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return not stat.S_ISDIR(facts.st_mode)
