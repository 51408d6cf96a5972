"""Recognizes folders of git, Python and conda by their content, not by their names."""

from __future__ import annotations

import os
import stat

_MARKS = {"HEAD": "git", "pyvenv.cfg": "Python", "conda-meta/history": "conda"}
"""
Files by which a tool's folder is recognized, each with the name of the tool. A folder with the file `HEAD` counts as a
git repository even if the other files of a repository are missing, because `spotrun fetch` might write these other
files next.
"""


def tool_of(folder: int | str) -> str:
    """
    Return the name of the tool to which a folder belongs; "" if there is none. A folder counts even if it still lacks
    files that the tool requires. The caller must not write files into a tool's folder, because the tool would take
    settings and commands from them.
    """
    return next((tool for mark, tool in _MARKS.items() if _has_file(folder, mark)), "")


def is_git_folder(folder: str) -> bool:
    """Return True for a folder that git accepts as a repository, or as the git folder of an additional work tree."""
    if not _has_file(folder, "HEAD"):
        return False
    found = {name for name in ("objects", "refs", "commondir") if os.path.lexists(os.path.join(folder, name))}
    return "commondir" in found or len(found) == 2


def _has_file(folder: int | str, name: str) -> bool:
    """
    Return True if `folder` has a file or a link of this name, even a broken link. A folder of this name does not count.
    For example, a script may store a part of a model in a folder `head`. On a disk that ignores case, this folder is
    also found under the name `HEAD`.
    """
    try:
        if isinstance(folder, str):
            facts = os.stat(os.path.join(folder, name), follow_symlinks=False)
        else:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return not stat.S_ISDIR(facts.st_mode)
