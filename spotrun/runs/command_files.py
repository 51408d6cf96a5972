"""Finds files that the commands of a job name, and that are not in its work folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

from spotrun.errors import Mistakes, SpecInvalid
from spotrun.spec.model import RunSpec
from spotrun.units import shown

CREATES_NO_FILE = frozenset({"apt-get", "chmod", "echo", "export", "mkdir", "nvidia-smi", "set", "true"})
"""Commands, besides `pip install`, after which a file that was not in the work folder is still not in it."""
_PYTHON = re.compile(r"python[\d.]*")
_SHELLS = frozenset({"bash", "sh", "source", "."})
_OPTION = re.compile(r"-[a-zA-Z]+")
_VALUED = re.compile(r"-\w*[cmoWX]")
"""An option of a shell or of Python after which the next word is no file that it runs."""
_NOT_PLAIN = re.compile(r"[$*?\[{~`\\:]|^[/-]|^$|(^|/)\.\.(/|$)")
"""A path that a shell or another program replaces, or that is outside the work folder."""
_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_SEPARATORS = re.compile(r"[;&|\n]+")


def require_command_files(spec: RunSpec) -> None:
    """
    Check that the files that `setup` and `train.run` name are in the work folder. Only plain forms are read, such as
    `bash FILE` and `pip install -r FILE`, and only before the first command that could create a file.

    Raises:
        SpecInvalid: a file is missing; SeveralInvalid if several are.
    """
    mistakes = Mistakes()
    commands = [(("setup",), spec.setup or ""), (spec.train.key, spec.train.run or "")]
    lines = chain.from_iterable(((key, *each) for each in _simple_commands(text)) for key, text in commands)
    for key, words, may_fail in lines:
        for name in [] if may_fail else _files_of(words):
            with mistakes:
                _require(Path(spec.workdir), name, key)
        if words[0] not in CREATES_NO_FILE and not _installed(words):
            break
    mistakes.refuse()


def _require(workdir: Path, name: str, key: tuple[str, ...]) -> None:
    if not _NOT_PLAIN.search(name) and not (workdir / name).exists():
        raise SpecInvalid(
            f"no such file: {shown(workdir / name, 200)}",
            hint="copy the file into the work folder, or correct the command",
            key=key,
        )


def _simple_commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """
    Yield the words of each command in a text of a shell, and whether the text goes on if this command fails. A command
    whose output goes to a file begins with `>`, because it creates this file; so does a text that cannot be read.
    """
    text = _COMMENT.sub(r"\1", text.replace("\\\n", " "))
    reader = shlex.shlex(text, posix=True, punctuation_chars=";&|\n<>()")
    reader.whitespace, reader.whitespace_split, reader.commenters = " \t\r", True, ""
    try:
        tokens = [*reader, "\n"]
    except ValueError:  # a quotation mark without its partner, as in a text that `cat` reads
        tokens = [">", "\n"]
    words = list[str]()
    for token in tokens:
        if not _SEPARATORS.fullmatch(token):
            words.append(token)
            continue
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            del words[0]
        if words and ">" in "".join(words) and words[0] in CREATES_NO_FILE:
            words.insert(0, ">")
        if words:
            yield words, token.startswith("||")
        words = []


def _files_of(words: Sequence[str]) -> list[str]:
    """Return the files that a simple command runs, or from which pip reads requirements."""
    if installed := _installed(words):
        return [name for flag, name in pairwise(installed) if flag in ("-r", "--requirement")]
    program, *rest = words
    if program.startswith("./"):
        return [program]
    is_python = _PYTHON.fullmatch(program) is not None
    if not is_python and program not in _SHELLS:
        return []
    while rest and _OPTION.fullmatch(rest[0]) and not _VALUED.fullmatch(rest[0]):
        del rest[0]
    # A shell also looks for a name without a slash among the programs of the machine.
    return [name for name in rest[:1] if is_python or "/" in name or (program in ("bash", "sh") and "." in name)]


def _installed(words: Sequence[str]) -> Sequence[str]:
    """Return the arguments of `pip install`, with the word `install`; none of another command."""
    pip = next((at for at, word in enumerate(words[:3]) if word in ("pip", "pip3")), 2)
    by = [_PYTHON.sub("python", word) for word in words[:pip]]
    return words[pip + 1 :] if by in ([], ["uv"], ["python", "-m"]) and words[pip + 1 : pip + 2] == ["install"] else []
