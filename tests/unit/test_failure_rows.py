"""
Two parts of the catalogue in docs/design/failures.md, provisioning (P) and notices (N): each row that concerns a driver
or the agent has a test on EC2 that is named for it, and each other row is here with the reason.
"""

from __future__ import annotations

import re

from tests.support.repository import ROOT

CATALOGUE = (ROOT / "docs" / "design" / "failures.md").read_text()
ROWS = {*re.findall(r"^### ([PN]\d+) ", CATALOGUE, re.MULTILINE)}
NOT_ON_EC2 = {
    **dict.fromkeys(("P22", "P23", "P24", "P25"), "codes and operations of Compute Engine, which has no driver yet"),
    **dict.fromkeys(("N11", "N12"), "the shutdown of an instance on Compute Engine, where none starts yet"),
}
"""Rows of another cloud."""
DECIDED_ELSEWHERE = {
    "P28": ("test_the_pool_that_was_just_lost_is_asked_last", "the policy asks last where it lost last"),
}
"""Rows that neither a driver nor the agent decides, with the test of whoever does."""
_NAMED = re.compile(r"^def test_((?:[pn]\d+_)+)", re.MULTILINE)
_TESTS = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))


def test_each_row_has_a_test_or_a_reason() -> None:
    tested = {row.upper() for found in _NAMED.findall(_TESTS) for row in found.strip("_").split("_")}
    assert tested <= ROWS
    assert ROWS - tested == NOT_ON_EC2.keys() | DECIDED_ELSEWHERE.keys()


def test_what_is_decided_elsewhere_is_tested_there() -> None:
    assert [test for test, _ in DECIDED_ELSEWHERE.values() if f"def {test}(" not in _TESTS] == []
