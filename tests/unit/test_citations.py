"""Each rule, promise, failure row, page and file that is cited is there; and the design pages say what the code has."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from spotrun.run import events as ev
from tests.support.repository import ROOT

DESIGN, DECISIONS = ROOT / "docs" / "design", ROOT / "docs" / "decisions"
PREFIXES = {"protocol": "", "promises": "IT", "failures": "PNCRKBS"}
"""The pages that are cited by number, with the letters of their numbers."""
MADE = {"index.md"}
"""The site's first page, which `make docs` makes of README.md."""
_HEADING = re.compile(r"^### ([A-Z]?\d+)(?:\. | )", re.MULTILINE)
_ID = r"[A-Z]?\d+"


def _ids(letters: str) -> str:
    """One number, or several: `P1 to P28`, `P3, P6`, `20 to 22`, `S1-S3`."""
    return rf"{letters}\d+(?:(?:, and |, | and | to |-){letters}\d+)*"


_CITATION = re.compile(
    "|".join(
        (
            rf"(?i:(?<!pickle of )\bprotocol(?:\.md)?,? (?P<protocol>{_ids('')}))\b",
            rf"\b(?i:promises?(?:\.md)?) (?P<promise>{_ids('I')})\b",
            rf"\b(?i:battery|batteries) (?P<battery>{_ids('T')})\b",
            rf"\bfailures\.md,? (?P<failure>{_ids('[PNCRKBS]')})\b",
            rf"\b(?i:rows?) \(?(?P<row>{_ids('[PNCRKBS]')})\b",
            r"\((?P<bracketed>(?!P50|P95)[PNCRKI]\d+(?:, [PNCRKI]\d+)*)\)",
            r"\bdef test_(?P<test>(?:[pncrkbs]\d+_)+)",
        )
    )
)
_RANGE = re.compile(rf"({_ID})(?: to |-)({_ID})")
_DECISION = re.compile(r"\bdecision (\d{3})\b")
_PAGE = re.compile(r"(?<![\w*{/.-])((?:[\w.-]+/)*[\w-]+\.md)\b(?!\w)")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`((?:spotrun|tests|benchmarks|docs|infra|examples)/[\w./*-]+)`")


@cache
def tracked() -> tuple[Path, ...]:
    """The text files of this repository, new ones included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    kinds = {".py", ".md", ".sh", ".yaml", ".yml", ".toml", ".txt", ""}
    paths = (ROOT / name for name in listed if name)
    return tuple(path for path in paths if path.suffix in kinds and path.is_file())


@cache
def headings() -> frozenset[str]:
    return frozenset(found for page in PREFIXES for found in _HEADING.findall((DESIGN / f"{page}.md").read_text()))


def cited(text: str) -> Iterator[tuple[int, str]]:
    """Each number that a text cites, with its line."""
    for found in _CITATION.finditer(text):
        (words,) = (group for group in found.groups() if group)
        line = text.count("\n", 0, found.start()) + 1
        if found["test"]:
            yield from ((line, each.upper()) for each in words.strip("_").split("_"))
            continue
        for first, last in _RANGE.findall(words):
            letter = first.rstrip("0123456789")
            between = range(int(first.lstrip(letter)), int(last.lstrip(letter)))
            yield from ((line, f"{letter}{number}") for number in between)
        yield from ((line, each) for each in re.findall(_ID, words))


def unknown_citations(text: str) -> list[str]:
    found = [f"{line}: {each}" for line, each in cited(text) if each not in headings()]
    numbers = {path.name[:3] for path in DECISIONS.glob("[0-9]*.md")}
    return found + [f"decision {number}" for number in _DECISION.findall(text) if number not in numbers]


def pages_that_are_not_there(text: str, folder: Path) -> list[str]:
    """A page is named by its path from here or from the root, or by its name alone where it is in docs/ or the root."""
    places = (folder, ROOT, ROOT / "docs", DESIGN, DECISIONS)
    found = [name for name in _PAGE.findall(text) if name not in MADE]
    return [name for name in found if not any((place / name).is_file() for place in places)]


def slugs(page: Path) -> set[str]:
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def dead_links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in slugs(place)):
            yield target


OURS = [path for path in tracked() if path != Path(__file__) and "spotrun.egg-info" not in path.parts]
PAGES = [path for path in OURS if path.suffix == ".md"]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.exhaustive
def test_every_rule_promise_and_row_that_is_cited_has_a_heading() -> None:
    unknown = [f"{named(path)}:{each}" for path in OURS for each in unknown_citations(path.read_text())]
    assert unknown == []


@pytest.mark.exhaustive
def test_every_page_that_is_mentioned_is_there() -> None:
    missing = [
        f"{named(path)}: {name}" for path in OURS for name in pages_that_are_not_there(path.read_text(), path.parent)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_links_to_what_is_there_and_names_files_that_exist(page: Path) -> None:
    assert list(dead_links(page)) == []
    patterns = {name: re.sub(r"\b[A-Z]{2,}\b", "*", name.rstrip("/")) for name in _FILE.findall(page.read_text())}
    assert [name for name, pattern in patterns.items() if not list(ROOT.glob(pattern))] == []


def test_numbers_have_no_gap() -> None:
    for page, letters in PREFIXES.items():
        found = _HEADING.findall((DESIGN / f"{page}.md").read_text())
        for letter in letters or ("",):
            mine = [each for each in found if each.rstrip("0123456789") == letter]
            assert mine == [f"{letter}{number}" for number in range(1, len(mine) + 1)], (
                f"{page}.md, {letter or 'rules'}"
            )
    assert {"30", "I18", "T12", "P28", "N16", "C30", "R17", "K16", "B8", "S17"} <= headings()


def test_the_table_of_writers_has_each_event_once() -> None:
    table = (DESIGN / "protocol.md").read_text().split("## Who appends what")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ") and "`" in line]
    written = re.findall(r"`(\w+)`", "".join(rows))
    assert sorted(written) == sorted(event.__name__ for event in get_args(ev.AnyEvent))


def test_the_table_of_rooms_has_each_package_once() -> None:
    rooms = re.findall(r"^\| `(spotrun/\w+)` \|", (DESIGN / "architecture.md").read_text(), re.MULTILINE)
    packages = sorted(f"spotrun/{path.parent.name}" for path in (ROOT / "spotrun").glob("*/__init__.py"))
    assert sorted(rooms) == packages


def test_each_message_that_is_explained_is_one_that_spotrun_writes() -> None:
    """Texts of the code that are broken over lines, or between which stand values, are read as one."""
    source = "".join(path.read_text() for path in OURS if path.is_relative_to(ROOT / "spotrun"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    explained = re.findall(r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(explained) > 20
    assert [part for message in explained for part in message.split("`…`") if part not in joined] == []


def test_each_decision_is_dated_and_in_the_index() -> None:
    index = (DECISIONS / "README.md").read_text()
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    assert [path.name[:3] for path in pages] == [f"{number:03}" for number in range(1, len(pages) + 1)]
    for path in pages:
        title, _, dated = path.read_text().splitlines()[:3]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", dated), f"{path.name}: its third line is its date"
        assert f"[{title.removeprefix('# ')}]({path.name})" in index, f"{path.name} is not in the index by its title"


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("as protocol 30 says", []),
        ("as protocol 47 to 49 say", ["1: 49"]),
        ("(protocol 24 and 77)", ["1: 77"]),
        ("protocol.md 17, promise I29", ["1: I29"]),
        ("promises I13, I15 and I44", ["1: I44"]),
        ("failures.md P27, R99", ["1: R99"]),
        ("one\ntwo (P15), (P28, P99)", ["2: P99"]),
        ("rows P1 to P28, rows (N1, N2, ...)", []),
        ("Battery T4, battery T14", ["1: T14"]),
        ("def test_p4_n17_it_is_told() -> None:", ["1: N17"]),
        ("a pickle of protocol 0, P50 to P95, S3, H100", []),
        ("decision 999", ["decision 999"]),
    ],
)
def test_an_unknown_number_is_found_however_it_is_cited(text: str, unknown: list[str]) -> None:
    assert unknown_citations(text) == unknown


def test_a_page_or_a_link_that_is_not_there_is_found(tmp_path: Path) -> None:
    assert pages_that_are_not_there("Layout.md, point 5; docs/nowhere.md; protocol.md; README.md", tmp_path) == [
        "Layout.md",
        "docs/nowhere.md",
    ]
    page = tmp_path / "page.md"
    page.write_text("# A page\n[here](#a-page) [there](#b-page) [gone](gone.md) [web](https://example.org)\n")
    assert list(dead_links(page)) == ["#b-page", "gone.md"]
