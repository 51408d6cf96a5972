"""spotrun/run/versions.py, against plain lists and dicts."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyrsistent import pvector

from spotrun.run.versions import Table, position


class Named(NamedTuple):
    number: int
    word: str = ""


@pytest.mark.exhaustive
@given(st.lists(st.integers(0, 10**6), unique=True, max_size=200), st.integers(0, 10**6))
def test_an_item_is_found_by_its_number(numbers: list[int], asked: int) -> None:
    items = pvector(Named(number) for number in sorted(numbers))
    assert all(position(items, item.number) == at for at, item in enumerate(items))
    assert position(items, asked) == (sorted(numbers).index(asked) if asked in numbers else None)


def test_a_table_is_a_dict_by_number() -> None:
    table: Table[Named] = Table()
    for number in range(0, 1000, 2):
        table = table.added(Named(number))
    changed = table.changed(Named(6, "six"))
    assert table == {number: Named(number) for number in range(0, 1000, 2)}
    assert changed == {**table, 6: Named(6, "six")}
    assert list(changed) == list(range(0, 1000, 2))
    assert (changed.get(7), 7 in changed, 8 in changed, len(changed)) == (None, False, True, 500)
    assert next(reversed(changed.values())) == Named(998)
