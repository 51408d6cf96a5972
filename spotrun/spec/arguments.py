"""
Finds how a job's script spells the name of an argument.

For an argument called `batch_size`, the script may expect `--batch-size`, `--batch_size` or, with Hydra, `batch_size=`
or `data.batch_size=`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spotrun.spec.model import RunSpec

FILES_MAX = 200
"""Maximum number of Python files of the work folder that are read. Few work folders have more."""
OPEN_PARSERS = ("LightningCLI", "jsonargparse", "HfArgumentParser", "fire.Fire", "tyro", "simple_parsing")
"""Libraries that create arguments whose names the script itself does not contain."""
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*", re.ASCII)


def replaced(args: Sequence[str], name: str, value: str) -> tuple[str, ...] | None:
    """Return `args` with the argument called `name` set to `value`; None if `args` has no such argument."""
    found, done, index = list[str](), False, 0
    while index < len(args):
        flag, given, _ = args[index].partition("=")
        if not _names(flag, name, given=bool(given)):
            found.append(args[index])
        elif given:
            found.append(f"{flag}={value}")
            done = True
        else:
            found += [flag, value]
            done = True
            index += index + 1 < len(args) and not _is_flag(args[index + 1])
        index += 1
    return tuple(found) if done else None


def _names(flag: str, name: str, *, given: bool) -> bool:
    """
    Return True if `flag` is the argument called `name`. `flag` is a word of the command line, up to its equals sign if
    it has one. `given` is True if the word has an equals sign and a value.

    With dashes, as in --lr, `flag` can always be the argument. Without dashes, it can be the argument only if the word
    has an equals sign: lr=0.1, or +lr=0.1 as in Hydra.
    """
    dashes = len(flag) - len(flag.lstrip("-"))
    return (dashes > 0 or given) and plain(flag.lstrip("-+")) == plain(name)


def _is_flag(word: str) -> bool:
    """Return True if the word is a flag. A negative number such as -1e-3 is a value, not a flag."""
    return word.startswith("-") and as_number(word) == word


def plain(name: str) -> str:
    return name.replace("_", "-")


def as_number(value: str) -> str:
    """Return a number in a standard notation: 1e-3 and 0.001 become the same text. Return any other text unchanged."""
    try:
        return repr(float(value))
    except ValueError:
        return value


class DefinedNames(NamedTuple):
    """
    Names of arguments that Python files may define. `flags` are strings in the files such as "--lr". `words` are the
    parameters of functions and the fields of classes, which some libraries turn into flags. `is_open` is True if the
    files mention such a library. In this case the script may also accept arguments whose names are not found here.
    """

    flags: frozenset[str]
    words: frozenset[str]
    is_open: bool

    @classmethod
    def of(cls, texts: Iterable[str]) -> DefinedNames:
        flags, words, is_open = set[str](), set[str](), False
        for text in texts:
            is_open = is_open or any(name in text for name in OPEN_PARSERS)
            for node in _nodes(text):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FLAG.fullmatch(node.value):
                    flags.add(node.value)
                elif isinstance(node, ast.arg):
                    words.add(plain(node.arg))
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    words.add(plain(node.target.id))
        return cls(frozenset(flags), frozenset(words), is_open)

    def flag_for(self, name: str) -> str | None:
        """
        Return the flag that is spelled like `name`, apart from dashes and underscores. If there are several, return the
        longest. Return None if the files define no such flag.
        """
        return max((flag for flag in self.flags if plain(flag.lstrip("-")) == plain(name)), key=len, default=None)


def _nodes(text: str) -> Iterator[ast.AST]:
    """Yield the nodes of Python source; none if it cannot be parsed."""
    try:
        yield from ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        return


def _texts(workdir: Path) -> Iterator[str]:
    """
    Yield the source of each Python file that a script in the work folder might import: those in the work folder and in
    its subfolders, one level deep.
    """
    found = (path for pattern in ("*.py", "*/*.py") for path in sorted(workdir.glob(pattern)))
    for path in islice(found, FILES_MAX):
        with suppress(OSError):
            yield path.read_text(errors="replace")


class Script:
    """
    The names of the arguments that a job's code defines. They are read from the job's script and from all Python files
    of the work folder. A job that runs a command has no script. Each file is read once, when it is first needed.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._workdir = Path(spec.workdir)
        self._source = spec.train.source(self._workdir)

    @cached_property
    def _own(self) -> str:
        return "" if self._source is None else (self._workdir / self._source).read_text(errors="replace")

    @property
    def is_hydra(self) -> bool:
        return "hydra.main" in self._own

    @cached_property
    def itself(self) -> DefinedNames:
        return DefinedNames.of([self._own])

    @cached_property
    def beside(self) -> DefinedNames:
        return DefinedNames.of(_texts(self._workdir))

    def flag_for(self, name: str) -> str | None:
        """Return the argument `name` as it is spelled on the command line; None if no file defines the argument."""
        return self.itself.flag_for(name) or self.beside.flag_for(name)
