"""What agent and trainer say as JSON: the same values with msgspec and without, and nothing else than their kinds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.checkpoint import layout
from spotrun.folder.frozen_files import ContentSource, FrozenFile, FrozenFolder
from spotrun.folder.work_files import LinkTo, Stamp
from spotrun.wire import plain

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    # a lone surrogate is a character of its own here
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50)
@given(values)
def test_with_and_without_msgspec_the_values_are_the_same(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        sooner = plain.encode(value)
        patch.setattr(plain, "HAS_MSGSPEC", False)
        assert json.loads(plain.encode(value)) == json.loads(sooner) == value


def test_the_header_of_an_image_and_the_index_of_a_folder_are_the_same() -> None:
    import msgspec

    tensors = layout.place([("float32", (2, 3)), ("bool", ())])
    files = (FrozenFile("a", "b", Stamp(1, 2, 3, 4, 5), ContentSource.OPEN, 7, b"\0\xff"),)
    folder = FrozenFolder(files, {"c": "why"}, ("d",), {"e": LinkTo("a")}, {"f": 0o755})
    with pytest.MonkeyPatch.context() as patch:
        once = layout.encode_header(tensors, {"a": 1.5}, {"name": "\udc80"}), plain.encode(folder)
        patch.setattr(plain, "HAS_MSGSPEC", False)
        layout._entries_json.cache_clear()
        again = layout.encode_header(tensors, {"a": 1.5}, {"name": "\udc80"}), plain.encode(folder)
    assert layout._parse_header(once[0]) == layout._parse_header(again[0])
    assert msgspec.json.decode(again[1], type=FrozenFolder) == msgspec.json.decode(once[1], type=FrozenFolder) == folder


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    share: float = 0.5
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()
    by_name: dict[str, float] = field(default_factory=dict)
    inner: Inner | None = None
    flag: bool = False


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"count": "1"},
        {"count": True},
        {"count": 1.0},
        {"count": 10**30},
        {"count": 1, "share": "x"},
        {"count": 1, "share": True},
        {"count": 1, "kind": "c"},
        {"count": 1, "kind": []},
        {"count": 1, "names": "abc"},
        {"count": 1, "names": [1]},
        {"count": 1, "pairs": [["a", 1, 2]]},
        {"count": 1, "by_name": {"a": None}},
        {"count": 1, "inner": {"nom": "x"}},
        {"count": 1, "flag": 1},
    ],
)
def test_value_of_another_type_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not a|none of|missing|shorter|longer"):
        plain.typed(Outer, fields)


def test_fitting_fields_are_read_and_unknown_ones_are_left_out() -> None:
    fields = {"count": 1, "share": 2, "names": ["a"], "pairs": [["b", 3]], "inner": {"name": "x", "new": 1}, "later": 0}
    read = plain.typed(Outer, fields)
    assert read == Outer(count=1, share=2.0, names=("a",), pairs=(("b", 3),), inner=Inner(name="x"))
    assert isinstance(read.share, float)
