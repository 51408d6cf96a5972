"""Amounts of dollars in messages: no zeros that a price list has written, wherever a price comes from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.units import plain_usd
from tests.support.repository import ROOT

TEXTS = {"name", "variable", "text"}
"""What else follows a dollar sign: the name of an environment variable, or a text that is made already."""


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        ("0.053600000", "0.0536"),
        ("0.157800", "0.1578"),
        ("1.000000000", "1.00"),
        ("0.40", "0.40"),
        ("2.5", "2.5"),
        ("1E+1", "10"),
        ("0.000000001", "0.000000001"),
        ("-0.120", "-0.12"),
    ],
)
def test_price_is_written_without_needless_zeros(usd: str, text: str) -> None:
    assert plain_usd(Decimal(usd)) == text


def test_no_message_writes_an_amount_as_it_came() -> None:
    """Google's price list has nine decimal places, and EC2's spot prices have six."""
    assert [each for path in sorted((ROOT / "spotrun").rglob("*.py")) for each in raw_amounts(path)] == []


def raw_amounts(path: Path) -> Iterator[str]:
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "${" in text else ():
        if isinstance(node, ast.JoinedStr):
            for before, value in zip(node.values, node.values[1:], strict=False):
                after_sign = isinstance(before, ast.Constant) and str(before.value).endswith("$")
                if after_sign and isinstance(value, ast.FormattedValue) and is_raw(value):
                    yield f"{path.relative_to(ROOT)}:{value.lineno}: {ast.unparse(value.value)}"


def is_raw(value: ast.FormattedValue) -> bool:
    """Neither a text that a call has made, nor a number with a precision."""
    if isinstance(value.value, ast.Call) or (isinstance(value.value, ast.Name) and value.value.id in TEXTS):
        return False
    return value.format_spec is None or "." not in ast.unparse(value.format_spec)
