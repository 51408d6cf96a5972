"""
A pytest plugin that writes the table of patterns in docs/exactness.md: what scripts do, and how exact a resume is.

    pytest -p tests.plugins.patterns --patterns write tests       # make nightly

A test that shows it for one pattern, or for one in each of its cases, says so. `texts` has better names than the ids,
and an empty one for a case that shows no pattern of its own:

    @pytest.mark.pattern("exact", "Lightning")                    # a case's id is the pattern
    @pytest.mark.pattern("refused", "own loop", of="name", texts={"enumerated": "`enumerate` around the batches"})
    @pytest.mark.pattern("named", "Fabric", text="a script without a `Loop`")

What it asserts is the verdict. The row of a pattern whose test failed says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spotrun.version import __version__

PAGE = Path("docs", "exactness.md")
BEGIN, END = "<!-- table: make nightly -->", "<!-- end of the table of patterns -->"
VERDICTS = {
    "exact": "exact",
    "named": "named, not exact",
    "refused": "refused before the first step",
    "refused later": "refused when it happens",
}
FAILED = "**not as it should be**"
VARIANTS = (", all places", "-each third place", "-all places")
"""Ends of the ids of cases that show the same pattern at more places."""


class Pattern(NamedTuple):
    framework: str
    text: str
    verdict: str


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--patterns", choices=("write",), help="Write the table of patterns in docs/exactness.md.")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--patterns"):
        pairs = ((item.nodeid, _pattern(item, mark)) for item in items for mark in item.iter_markers("pattern"))
        shown = {name: pattern for name, pattern in pairs if pattern.text}
        config.pluginmanager.register(_Rows(config.rootpath / PAGE, shown), "writes-patterns")


class _Rows:
    def __init__(self, page: Path, shown: dict[str, Pattern]) -> None:
        self._page = page
        self._shown = shown
        self._passed: dict[Pattern, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        pattern = self._shown.get(report.nodeid)
        if pattern is not None and (report.when == "call" or report.failed):
            self._passed[pattern] = self._passed.get(pattern, True) and report.passed

    def pytest_sessionfinish(self) -> None:
        text = self._page.read_text()
        head, begin, rest = text.partition(BEGIN)
        _, end, tail = rest.partition(END)
        assert begin, f"{self._page} has no {BEGIN}"
        assert end, f"{self._page} has no {END}"
        self._page.write_text(f"{head}{BEGIN}\n\n{table(self._passed)}\n{END}{tail}")


def table(passed: dict[Pattern, bool]) -> str:
    rows = [_row(pattern, VERDICTS[pattern.verdict] if good else FAILED) for pattern, good in sorted(passed.items())]
    counts = ", ".join(f"{_count(passed, verdict)} {text}" for verdict, text in VERDICTS.items())
    return (
        f"spotrun {__version__}, {len(rows)} patterns: {counts}.\n\n"
        f"| trained with | pattern | a resume is |\n|---|---|---|\n{''.join(rows)}"
    )


def _count(passed: Iterable[Pattern], verdict: str) -> int:
    return sum(pattern.verdict == verdict for pattern in passed)


def _row(pattern: Pattern, verdict: str) -> str:
    return f"| {pattern.framework} | {pattern.text.replace('|', chr(92) + '|')} | {verdict} |\n"


def _pattern(item: Any, mark: pytest.Mark) -> Pattern:
    verdict, framework = mark.args
    assert verdict in VERDICTS, f"{item.nodeid}: {verdict} is no verdict"
    text = mark.kwargs.get("text")
    if text is None:
        text = item.callspec.id
        for end in VARIANTS:
            text = text.removesuffix(end)
        if texts := mark.kwargs.get("texts"):
            text = texts.get(item.callspec.params[mark.kwargs["of"]], text)
    return Pattern(framework, text, verdict)
