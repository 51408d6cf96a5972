"""spotrun/run/versions.py, against plain lists and dicts; and that versions share what they have in common."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.run.versions import LEAF, Index, Log, Table

LENGTHS = st.integers(0, 3 * LEAF)


class Named(NamedTuple):
    number: int
    word: str = ""


def leaves(log: Log[int]) -> list[int]:
    return [id(leaf) for leaf in log._leaves]


@settings(deadline=None)
@given(LENGTHS, st.data())
def test_a_log_is_a_list_and_each_change_leaves_the_old_one_as_it_was(length: int, data: st.DataObject) -> None:
    log, model = Log(range(length)), list(range(length))
    for change in data.draw(st.lists(st.sampled_from(["append", "replace", "truncate"]), max_size=8)):
        before, known = log, list(model)
        at = data.draw(st.integers(0, len(model)))
        if change == "append":
            log = log.appended(at)
            model.append(at)
        elif change == "truncate":
            log = log.truncated(at)
            del model[at:]
        elif at < len(model):
            log = log.replaced(at, -1)
            model[at] = -1
        assert log == Log(model)
        assert list(log) == model
        assert list(reversed(log)) == model[::-1]
        assert (len(log), bool(log)) == (len(model), bool(model))
        assert before == known, "the old version has changed"


@given(LENGTHS, st.integers(-3 * LEAF, 3 * LEAF), st.integers(-3 * LEAF, 3 * LEAF))
def test_items_and_slices_of_a_log_are_those_of_a_list(length: int, start: int, stop: int) -> None:
    log, model = Log(range(length)), list(range(length))
    assert log[start:stop] == tuple(model[start:stop])
    if -length <= start < length:
        assert log[start] == model[start]
    else:
        with pytest.raises(IndexError):
            log[start]


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=3 * LEAF), st.integers(0, 10**6))
def test_an_item_is_found_by_its_number(numbers: list[int], asked: int) -> None:
    items = [Named(number) for number in sorted(numbers)]
    log = Log(items)
    assert all(log.position(item.number) == at for at, item in enumerate(items))
    assert log.position(asked) == (sorted(numbers).index(asked) if asked in numbers else None)


def test_a_table_is_a_dict_by_number() -> None:
    table: Table[Named] = Table()
    for number in range(0, 4 * LEAF, 2):
        table = table.added(Named(number))
    changed = table.changed(Named(6, "six"))
    assert table == {number: Named(number) for number in range(0, 4 * LEAF, 2)}
    assert changed == {**table, 6: Named(6, "six")}
    assert list(changed) == list(range(0, 4 * LEAF, 2))
    assert (changed.get(7), 7 in changed, 8 in changed, len(changed)) == (None, False, True, 2 * LEAF)
    assert next(reversed(changed.values())) == Named(4 * LEAF - 2)


@given(st.lists(st.tuples(st.text(max_size=3), st.none() | st.integers()), max_size=60))
def test_an_index_is_a_dict(changes: list[tuple[str, int | None]]) -> None:
    index: Index[str, int] = Index()
    model: dict[str, int] = {}
    for key, value in changes:
        before, known = index, dict(model)
        index = index.changed(key, value)
        model.pop(key, None)
        if value is not None:
            model[key] = value
        assert (index, len(index)) == (model, len(model))
        assert before == known


def test_versions_share_all_but_what_has_changed() -> None:
    """However long a log is, a change makes one leaf anew."""
    log = Log(range(100 * LEAF))
    for changed in (log.appended(0), log.replaced(LEAF, -1), log.replaced(99 * LEAF, -1), log.truncated(99 * LEAF)):
        assert len(set(leaves(changed)) - set(leaves(log))) <= 1
        assert len(changed._tail) < LEAF
