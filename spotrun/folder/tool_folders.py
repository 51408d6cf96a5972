"""Recognizes folders of git, Python and conda by what is in them, whatever their names are."""

from __future__ import annotations

import os
import stat

_MARKS = {"HEAD": "git", "pyvenv.cfg": "Python", "conda-meta/history": "conda"}
"""Files that only a repository's own folder and environments have. With one more, a folder with `HEAD` may be git's."""


def tool_of(folder: int | str) -> str:
    """Return the tool that runs or obeys what is in a folder, or would with a file more; "" if there is none."""
    return next((tool for mark, tool in _MARKS.items() if _has_file(folder, mark)), "")


def is_git_folder(folder: str) -> bool:
    """Return True for a folder that git itself takes for a repository, or for what belongs to one work tree of it."""
    if not _has_file(folder, "HEAD"):
        return False
    found = {name for name in ("objects", "refs", "commondir") if os.path.lexists(os.path.join(folder, name))}
    return "commondir" in found or len(found) == 2


def _has_file(folder: int | str, name: str) -> bool:
    """Return True for a file or a link, also if it leads nowhere. A folder `head` may be that of a model."""
    try:
        if isinstance(folder, str):
            facts = os.stat(os.path.join(folder, name), follow_symlinks=False)
        else:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return not stat.S_ISDIR(facts.st_mode)
