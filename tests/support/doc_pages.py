"""The blocks of the pages in docs/: which are commands, which are files, which are not run and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.support.repository import ROOT

COMMANDS = ("console", "bash", "cron")
_BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
_NUMBER = re.compile(r"(?<![\w.])<?\$?\d[\d,.:]*(?:(?:ms|GB|MB|[dhms%])\d*)*(?!\w)")


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str
    not_run: str | None
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if its first line says one."""
        named = re.match(r"# ([\w-]+\.\w+)\n", self.text)
        return named[1] if named and self.kind in ("python", "yaml") else None

    def commands(self) -> list[tuple[str, str]]:
        """Each command with what the page shows of its output. A line that begins with `$ ` is a command."""
        parts = re.split(r"^\$ ", self.text, flags=re.M)
        return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts[1:]]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(found["kind"], found["text"], found["reason"], text[: found.start("kind")].count("\n") + 1)
        for found in _BLOCK.finditer(text)
    ]


def prints(expected: str, output: str) -> bool:
    """
    Whether a page shows what was printed.

    `...` stands for anything or nothing, on lines of its own or within one. Numbers, ids and the widths of columns
    may differ.
    """
    shown = re.escape(f" {_plain(expected)} ")
    pattern = shown.replace(re.escape(" ... "), r"(?:\ .*)?\ ").replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, f" {_plain(output)} ", re.S) is not None


def _plain(text: str) -> str:
    text = re.sub(r"\b(i|first|continued|on-demand|measure|plain-pytorch)-[0-9a-f]{10,17}\b", r"\1-#", text)
    text = _NUMBER.sub("#", text).replace("─", "")
    text = re.sub(r"(?<!\S)-(?!\S)", "#", text)
    return " ".join(text.split())
