"""
Names of files that `spotrun fetch` does not copy to the user's machine. Tools such as git or a shell *obey* files with
such names: they run them, or take settings or instructions from them. The training code chooses the names of its files.
So if `fetch` copied these files too, malicious training code could run commands on the user's machine.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from spotrun.folder import work_files


class Unfetched(StrEnum):
    """The reason why `fetch` does not copy a file from the store."""

    GIT = "git or another version control may run files in a folder of that name"
    NEVER = "no agent stores a folder of that name, because Python, Node.js or another tool runs files in it"
    HIDDEN = "a shell, an editor or another tool may obey a file of that name"
    OPTION = "programs may mistake a name that begins with a hyphen for an option"
    CONTROL = "a terminal may obey characters of its name"
    SHORT = "Windows may take the name for that of a different file"
    REPOSITORY = "git may treat a folder with such a file as a repository, and run commands from its config"
    PYTHON = "Python may run the file, or what the file names, at its start or when it reads a package"
    TESTS = "pytest or unittest may run or obey it"
    BUILD = "make or another build tool may run or obey it"
    LINTER = "a linter, a formatter or a type checker may run or obey it"
    JAVASCRIPT = "Node.js, npm or another JavaScript tool may run or obey it"
    ASSISTANT = "a coding assistant may obey it"
    SETTINGS = "Jupyter, Matplotlib, LaTeX, a server or another program may obey it at its start"

    @property
    def is_refused(self) -> bool:
        """
        True if agents never store files with such names. If such a file is in the store, another program has written
        it.
        """
        return self in (Unfetched.GIT, Unfetched.NEVER)

    @property
    def tools(self) -> str:
        """The tools that would run or obey the files in a folder with a refused name."""
        known = {
            Unfetched.GIT: "git or another version control",
            Unfetched.HIDDEN: "a shell, an editor or another tool",
        }
        return known.get(self, "Python, Node.js or another tool")


def _matcher(*patterns: str) -> re.Pattern[str]:
    """
    Return a regular expression that matches names. In a pattern without a dot, `*` matches no dot: `*file` does not
    match `a.file`.
    """
    return re.compile("|".join(re.escape(each).replace(r"\*", ".*" if "." in each else "[^.]*") for each in patterns))


_VERSION_CONTROL = _matcher(".git", ".hg", ".svn", ".bzr", ".jj", "cvs", "_darcs", "_svn", "_mtn", "*.git")
_FOLDERS = _matcher(
    *("sitecustomize", "sitecustomize.*", "usercustomize", "usercustomize.*"),  # Python imports these in many forms
    *("site-packages", "dist-packages"),  # Python runs each `*.pth` in these folders; elsewhere such files hold weights
    *("*.dist-info", "*.egg-info", "*.egg", "*.egg-link"),  # pytest and other tools load the plugins that these name
)
"""Names that Python runs or obeys, whether a file or a folder has the name."""
_ASSISTANTS = (
    *("agent", "agents", "amazonq", "claude", "codex", "conventions", "copilot-instructions", "crush", "gemini"),
    *("opencode", "qwen", "replit", "skill", "warp"),
)
_OBEYED = {
    Unfetched.REPOSITORY: ("head", "commondir", "gitdir", "config.worktree"),
    Unfetched.PYTHON: ("pyvenv.cfg", "*._pth", "__init__.*", "__main__.*"),  # unittest imports each package it finds
    Unfetched.TESTS: (
        *("conftest.*", "test*.py", "*_test.py", "pytest.ini", "pytest.toml", "tox.ini"),
        *("pyproject.toml", "setup.cfg"),  # these also configure linters and builds
    ),
    Unfetched.BUILD: (
        *(
            "*file",
            "*file.py",
            "*file.rb",
            "taskfile.y*ml",
            "sconstruct",
            "sconscript",
            "wscript",
            "build",
            "workspace",
        ),
        *("setup.py", "tasks.py", "dodo.py", "conf.py", "hubconf.py", "pavement.py"),
        *("build.rs", "build.xml", "build.zig", "build.ninja", "meson.build", "*.bazel", "*.gradle", "*.gradle.kts"),
        *("cmakelists.txt", "cmake*presets.json", "pom.xml", "cargo.toml", "rust-toolchain*", "rust-toolchain.toml"),
        *("go.mod", "go.work", "*.nix", "premake*.lua", "xmake.lua", "compose.y*ml", "compose.override.y*ml"),
        *("docker-compose*.y*ml", "composer.json", "dvc.yaml", "uv.toml", "poetry.toml", "pixi.toml", "pdm.toml"),
        *("hatch.toml", "mise.toml", "mise.*.toml", "devbox.json"),
    ),
    Unfetched.LINTER: (
        *("ruff.toml", "ty.toml", "mypy.ini", "pylintrc.toml", "pyrightconfig.json", "rustfmt.toml", "clippy.toml"),
        *("*.config.*js", "*.config.*ts", "*.config.json", "biome.json*", "tslint.json"),
    ),
    Unfetched.JAVASCRIPT: (
        *("package.json", "deno.json*", "bunfig.toml", "tsconfig*.json", "jsconfig.json", "lerna.json", "nx.json"),
        *("turbo.json", "nodemon.json", "pnpm-workspace.yaml", "*file.*js", "*file.ts"),
    ),
    Unfetched.ASSISTANT: (
        *(f"{name}.md" for name in _ASSISTANTS),
        *(f"{name}.*.md" for name in _ASSISTANTS),
        *("opencode.json*", "crush.json*", "mcp.json"),
    ),
    Unfetched.SETTINGS: (
        *("jupyter*config.*", "ipython*config.*", "ipcluster*config.*", "celeryconfig.py", "*.conf.py"),
        *("mkdocs.y*ml", "lefthook*.y*ml"),
        *("*rc", "irb.rc", "texmf.cnf", "startup.m", "root*.c", "autorun.inf", "desktop.ini"),
    ),
}
"""
Patterns for the names of files that a tool runs or obeys if it is started in the folder of the file, or searches this
folder.
"""
_MATCHERS = {reason: _matcher(*patterns) for reason, patterns in _OBEYED.items()}
_ORDINARY = frozenset({"datafile", "file", "hostfile", "infile", "logfile", "machinefile", "outfile", "profile"})
"""
Names that look like names of build files, such as Makefile and Justfile, but that programs often give to their output.
"""
_DATA = frozenset({".metadata", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})
"""
Hidden files that belong to checkpoints (torch.distributed.checkpoint) or arrays (Zarr). Without them, the data cannot
be read.
"""
_SHORT_NAME = re.compile(r"([^.]{1,7})~[0-9]+(?:\.([^.]{0,3}))?")
"""Pattern of the short names by which Windows' file systems also find files with longer names: `GIT~1` is `.git`."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control and direction characters and separators of lines, which terminals obey."""
_BLANK_LETTERS = "\u115f\u1160"
"""Hangul fillers. They are letters, but invisible, and some file systems ignore them."""
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Me", "Mn"})
"""Unicode categories of invisible characters: controls, formats, unassigned characters, and marks on other letters."""
_NAMES_MAX = 1 << 14


def unfetched(path: str) -> Unfetched | None:
    """
    Return the reason why the file at `path` is not fetched; None if it is fetched. Each name in the path is checked.

    A name is also refused if it differs from a refused name only in case, in dots and blanks at the end, or in
    invisible characters, because some file systems treat such names as equal.
    """
    *folders, last = re.split(r"[/\\]", path)
    reasons = [reason for reason in (*map(_unfetched_folder, folders), _unfetched_file(last)) if reason is not None]
    return next((reason for reason in reasons if reason.is_refused), next(iter(reasons), None))


def unfetched_below(name: str) -> Unfetched | None:
    """
    Return the reason why `spotrun fetch` refuses to write into a user's folder of this name; None if it does not
    refuse.
    """
    plain = _folded(name)
    if _VERSION_CONTROL.fullmatch(plain):
        return Unfetched.GIT
    if plain in work_files.NEVER:
        return Unfetched.NEVER
    if _visible(name).startswith("."):
        return Unfetched.HIDDEN
    return Unfetched.PYTHON if _FOLDERS.fullmatch(plain) else None


@lru_cache(_NAMES_MAX)
def _unfetched_folder(name: str) -> Unfetched | None:
    return unfetched_below(name) or _unprintable(name) or (Unfetched.SHORT if _short(name) else None)


@lru_cache(_NAMES_MAX)
def _unfetched_file(name: str) -> Unfetched | None:
    if name in _DATA:
        return None
    if reason := unfetched_below(name) or _unprintable(name):
        return reason
    if (plain := _folded(name)) in _ORDINARY:
        return None
    found = (reason for reason, matcher in _MATCHERS.items() if matcher.fullmatch(plain))
    return next(found, Unfetched.SHORT if _is_short_of_obeyed(name) else None)


def _unprintable(name: str) -> Unfetched | None:
    if _CONTROL.search(name):
        return Unfetched.CONTROL
    return Unfetched.OPTION if _visible(name).startswith("-") else None


def _short(name: str) -> re.Match[str] | None:
    return _SHORT_NAME.fullmatch(_folded(name))


def _is_short_of_obeyed(name: str) -> bool:
    """
    Return True if `name` may be Windows' short (8.3) name of a file that a tool obeys. For example, `PYPROJ~1.TOM` may
    be the short name of `pyproject.toml`.
    """
    if (short := _short(name)) is None:
        return False
    begin, ending = short[1], short[2] or ""
    for pattern in ("sitecustomize.*", "usercustomize.*", *(each for some in _OBEYED.values() for each in some)):
        head, star, _ = pattern.partition("*")
        fits = head.startswith(begin) or (star and begin.startswith(head))
        if fits and fnmatchcase(ending, pattern.rpartition(".")[2][:3] if "." in pattern else ""):
            return True
    return False


@lru_cache(_NAMES_MAX)
def _folded(name: str) -> str:
    """
    Return a normalized form of a name. Two names have the same form if some file system treats them as equal. For
    example, the part after a colon is dropped, because on NTFS a file's name ends there.
    """
    return re.sub(r"[\s.]+$", "", _visible(name).partition(":")[0])


@lru_cache(_NAMES_MAX)
def _visible(name: str) -> str:
    """Return a name without the characters that some file systems ignore, in lower case and in one Unicode form."""
    letters = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    seen = (each for each in letters if unicodedata.category(each) not in _UNSEEN and each not in _BLANK_LETTERS)
    return "".join(seen).lstrip()
