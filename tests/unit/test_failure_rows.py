"""
Three parts of the catalogue in docs/design/failures.md, provisioning (P), notices (N) and Google Cloud (G): each row
that concerns a driver or the agent has a test that is named for it, and each other row is here with the reason.
"""

from __future__ import annotations

import re

from tests.support.repository import ROOT

CATALOGUE = (ROOT / "docs" / "design" / "failures.md").read_text()
ROWS = {*re.findall(r"^### ([PNG]\d+) ", CATALOGUE, re.MULTILINE)}
DECIDED_ELSEWHERE = {
    "P28": ("test_pool_that_was_just_lost_is_requested_last", "the policy asks last where it lost last"),
}
"""Rows that neither a driver nor the agent decides, with the test of whoever does."""
_NAMED = re.compile(r"^def test_((?:[png]\d+_)+)", re.MULTILINE)
_TESTS = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))


def test_each_row_has_a_test_or_a_reason() -> None:
    tested = {row.upper() for found in _NAMED.findall(_TESTS) for row in found.strip("_").split("_")}
    assert tested <= ROWS
    assert ROWS - tested == DECIDED_ELSEWHERE.keys()


def test_rows_decided_elsewhere_are_tested_there() -> None:
    assert [test for test, _ in DECIDED_ELSEWHERE.values() if f"def {test}(" not in _TESTS] == []
