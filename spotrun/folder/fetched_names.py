"""
Names of files that `spotrun fetch` leaves in the store, as tools run or obey what has such a name.

Training code chooses the names.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from spotrun.folder import work_files


class Unfetched(StrEnum):
    """The reason for which a file is left in the store."""

    NEVER = "git, Python or Node.js may run what is in a folder of that name"
    OBEYED = "a shell, an editor or another tool may obey a file of that name"


_KIN = work_files.NEVER | {".hg", ".svn", ".bzr", ".jj", "cvs", "_darcs"}
_OBEYED = (
    *("conftest.py", "test_*.py", "*_test.py", "pytest.ini", "pytest.toml"),  # pytest, in each folder below its own
    *("pyproject.toml", "setup.cfg", "tox.ini", "mypy.ini", "pylintrc", "pylintrc.toml"),  # they name code to load
    *("sitecustomize.py", "usercustomize.py", "pyvenv.cfg"),  # Python, wherever they are on its path
    *("jupyter*config.py", "jupyter*config.json", "ipython*config.py", "matplotlibrc"),  # from the current folder
    *("makefile", "gnumakefile", "bsdmakefile"),  # make takes GNUmakefile before the Makefile that is there
    *("latexmkrc", "startup.m", "rootlogon.c", "mise.toml"),
    *(f"{assistant}.md" for assistant in ("agents", "claude", "gemini")),
    *("head", "commondir", "gitdir", "config.worktree"),  # git: they make a folder a repository, and `config` runs
)
"""Patterns of the names of files that tools run, or obey, when they start in the folder or look through it."""
_DATA = frozenset({".metadata", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})
"""Hidden files of checkpoints (torch.distributed.checkpoint) and arrays (Zarr), which cannot be read without them."""
_SHORT_NAME = re.compile(r"[^.]{1,7}~[0-9]+(\.[^.]{0,3})?")
"""By such a name Windows' file systems find a folder of a longer one too: `GIT~1` is `.git`."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Terminals obey these characters. A name that begins with a hyphen is an option where a shell writes it for a `*`."""
_BLANK_LETTERS = "\u115f\u1160"
"""Hangul fillers: letters that file systems ignore, as they do marks and format characters."""
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Me", "Mn"})
"""Categories of Unicode: controls, formats, what is not assigned, and marks on other letters."""
_NAMES_MAX = 1 << 14


def unfetched(path: str) -> Unfetched | None:
    """
    Return why a file is not fetched, judged by each name in its path; None if it is.

    Names count as equal that any file system takes for equal: in another case, with dots and blanks at their end, or
    with characters that cannot be seen.
    """
    *folders, last = re.split(r"[/\\]", path)
    plain = [_folded(name) for name in (*folders, last)]
    if any(name in _KIN or fnmatchcase(name, "*.git") for name in plain):
        return Unfetched.NEVER
    judged = folders if last in _DATA else [*folders, last]
    if any(is_hidden(name) or _visible(name).startswith("-") or _CONTROL.search(name) for name in judged):
        return Unfetched.OBEYED
    is_obeyed = any(map(_SHORT_NAME.fullmatch, plain[:-1])) or any(fnmatchcase(plain[-1], name) for name in _OBEYED)
    return Unfetched.OBEYED if is_obeyed else None


def is_hidden(name: str) -> bool:
    """Return True for the name of a file or folder that begins with a dot, for some file system at least."""
    return _visible(name).startswith(".")


@lru_cache(_NAMES_MAX)
def _folded(name: str) -> str:
    """The name as the most forgiving file system compares it. NTFS ends it at a colon."""
    return re.sub(r"[\s.]+$", "", _visible(name).partition(":")[0])


@lru_cache(_NAMES_MAX)
def _visible(name: str) -> str:
    """The letters of a name that all file systems compare, in one case and one form."""
    letters = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    seen = (each for each in letters if unicodedata.category(each) not in _UNSEEN and each not in _BLANK_LETTERS)
    return "".join(seen).lstrip()
