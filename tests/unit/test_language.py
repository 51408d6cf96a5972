"""
The prose of the project is plain English: rules that a program can count.

A docstring begins with a verb in the imperative or with a noun phrase, and no text has the words below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.repository import ROOT

HEADLESS = re.compile(r"(What|Whether|Who|Whoever|How|Where|When|Until|Of|Which|Why|That)\b")
"""First words of a docstring whose subject is missing."""
PHRASES = {
    "is told": re.compile(r"\b(is|are|be|was|were|been) told\b"),
    "beside": re.compile(r"\bbeside\b"),
    "anew": re.compile(r"\banew\b"),
    "somebody": re.compile(r"\b(some|no|every|any)body\b", re.IGNORECASE),
    "whoever": re.compile(r"\bwhoever\b", re.IGNORECASE),
    "so many": re.compile(r"\bso (many|long|much)\b(?! (as|that))", re.IGNORECASE),
    "is asked": re.compile(r"\b(is|are|was|were) asked\b"),
    "looks at": re.compile(r"\b(looks|looked|look) at\b"),
}
ANY_PHRASE = re.compile("|".join(words.pattern for words in PHRASES.values()), re.IGNORECASE)
"""To look for all of them at once: hardly any text has one."""
IN_JSON = re.compile(
    r"\A(beside|nobody|is asked for)\Z|nobody bills them|it was asked to stop|that nobody can read"
    r"|nobody has asked for spot in this account before|nobody takes nodes from anybody here"
    r"|somebody whose address this login does not tell"
)
"""Texts that programs read in `--json`, or in the cloud: they stay as they are."""


def _python() -> list[Path]:
    return sorted(path for folder in ("spotrun", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def _pages() -> list[Path]:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "infra").rglob("*.md")]
    return sorted(path for path in pages if "decisions" not in path.parts)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and value of each text: docstrings, messages and helps."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@cache
def broken() -> tuple[tuple[str, str], ...]:
    """Each place that breaks a rule: the rule, and the place as `path:line: text`."""
    found: list[tuple[str, str]] = []
    for path in _python():
        tree = ast.parse(path.read_text())
        name = path.relative_to(ROOT)
        for line, text in _docstrings(tree):
            if HEADLESS.match(text):
                found.append(("headless", f"{name}:{line}: {text.splitlines()[0]}"))
        for line, text in _texts(tree):
            if not ANY_PHRASE.search(text):
                continue
            free = IN_JSON.sub("", text)
            found += [(rule, f"{name}:{line}: {text[:100]!r}") for rule, words in PHRASES.items() if words.search(free)]
    for path in _pages():
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if not ANY_PHRASE.search(text):
                continue
            where = f"{path.relative_to(ROOT)}:{number}: {text[:100]}"
            found += [(rule, where) for rule, words in PHRASES.items() if words.search(text)]
    return tuple(found)


@pytest.mark.exhaustive
def test_no_rule_of_language_is_broken() -> None:
    assert not broken(), "\n".join(f"{rule:10} {place}" for rule, place in broken())


_OPENS = re.compile(r"\s*([-*+] |\d+\. |#|\||>|<|```|~~~|!\[|\[[^\]]+\]:|---)")
"""What begins a block of Markdown; any other line after a line of prose goes on with its paragraph."""


def _continued(text: str) -> Iterator[int]:
    """Yield the numbers of lines that continue the paragraph of the line before. Code and front matter are left out."""
    before, fenced, front = "", False, text.startswith("---\n")
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith(("```", "~~~"))
        prose = bool(line.strip()) and not (fenced or fence or front)
        if prose and before and not _OPENS.match(line) and not before.lstrip().startswith(("#", "|", "<", "![", ">")):
            yield number
        front = front and not (number > 1 and line == "---")
        fenced ^= fence
        before = line if prose else ""


def test_a_paragraph_of_markdown_is_one_line() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in _pages() for line in _continued(path.read_text())]
    assert not found, "\n".join(found)
    assert [*_continued("one\ntwo\n\n- three\n  four\n```\nfive\nsix\n```\n")] == [2, 5]


if __name__ == "__main__":
    for rule, place in broken():
        print(f"{rule:10} {place}")
