"""Every event survives being written down; what else was sealed is no entry, and what was not sealed is damage."""

from __future__ import annotations

import json
import types
import typing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import EnumType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotrun.errors import LedgerDamaged, SpotrunError
from spotrun.folder.ledger import Ledger
from spotrun.report.describe import SENTENCES
from spotrun.run import events as ev
from spotrun.run.bounds import NUMBER_MAX
from spotrun.run.effects import EFFECTS
from spotrun.run.entry_bytes import decode_entry, encode_entry, entry_json, is_whole, seal
from spotrun.run.events import ENTRY_SIZE_MAX, AnyEvent, Entry, Event, RunStopped, StopRequested, kind
from spotrun.run.preconditions import CHECKS
from spotrun.store.opening import open_store
from tests.support.histories import History, histories
from tests.support.manual_clock import ManualClock

EVENT_TYPES = typing.get_args(AnyEvent)
TEXT = st.text(max_size=20)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-NUMBER_MAX, NUMBER_MAX),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    Decimal: st.decimals(0, 10**12, allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(datetime(2020, 1, 1), datetime(2200, 12, 31), timezones=st.just(UTC)),
    Any: JSON_VALUES,
    types.NoneType: st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """All values of a type that a field of an event may have."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        of, meta = arguments
        if meta.le is None:
            return values_of(of)
        least = meta.gt if meta.ge is None else meta.ge
        return st.integers(least, meta.le) if of is int else st.floats(least, meta.le, exclude_min=meta.gt is not None)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=3)
    if isinstance(annotation, EnumType):
        return st.sampled_from(annotation)
    assert issubclass(annotation, msgspec.Struct), annotation
    return st.builds(annotation, **{name: values_of(hint) for name, hint in hints(annotation).items()})


def hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    types_of = typing.get_type_hints(struct, include_extras=True)
    return {field.name: types_of[field.name] for field in msgspec.structs.fields(struct)}


def entries_of(event: type[msgspec.Struct]) -> st.SearchStrategy[Entry]:
    rest = {name: values_of(hint) for name, hint in hints(Entry).items() if name != "event"}
    return st.builds(Entry, event=values_of(event), **rest)


@pytest.mark.exhaustive
@pytest.mark.parametrize("event", EVENT_TYPES, ids=lambda event: event.__name__)
def test_an_entry_is_read_back_as_it_was_written(event: type[msgspec.Struct]):
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(entries_of(event))
    def round_trip(entry: Entry) -> None:
        data = encode_entry(entry)
        read = decode_entry(data)
        assert read == entry
        assert type(read.event) is event
        assert encode_entry(read) == data

    round_trip()


@pytest.mark.parametrize("event", EVENT_TYPES)
def test_each_event_has_its_check_its_effect_and_its_sentence(event: type[msgspec.Struct]):
    assert event in CHECKS or event is ev.RunCreated  # which begins a ledger, and has a check of its own
    assert event in EFFECTS or event is ev.RunCreated
    assert event in SENTENCES


def test_no_event_is_left_out_of_the_round_trip():
    assert set(EVENT_TYPES) == set(Event.__subclasses__())


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_a_whole_ledger_is_read_back(entries: list[Entry]):
    assert [decode_entry(encode_entry(entry)) for entry in entries] == entries


def test_money_is_written_as_text_and_keeps_every_digit():
    history = History(budget_usd=Decimal("0.100000000000000000001"))
    written = json.loads(entry_json(history.entries[0]))["event"]
    assert written["type"] == "RunCreated"
    assert written["budget_usd"] == "0.100000000000000000001"


def test_the_kind_is_the_name_under_which_an_event_is_stored():
    entry = History().entries[0]
    assert kind(entry.event) == "RunCreated" == json.loads(encode_entry(entry))["event"]["type"]


@given(st.binary(max_size=200))
def test_unsealed_bytes_are_damage(data: bytes):
    assert not is_whole(data)
    with pytest.raises(LedgerDamaged):
        decode_entry(data)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_sealed_and_are_no_entry(data: bytes):
    assert decode_entry(seal(b"{" + data)) is None


def test_every_flipped_bit_of_an_entry_is_noticed():
    data = encode_entry(History().entries[0])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not is_whole(bytes(flipped)), f"bit {bit}"


def test_every_truncation_and_every_addition_is_noticed():
    data = encode_entry(History().entries[0])
    assert not any(is_whole(data[:size]) for size in range(len(data)))
    assert not any(is_whole(data + more) for more in (b" ", b"\n", b"\0", data))


@pytest.mark.parametrize(
    "body",
    [b"{}", b"{" * 100, b'{"a":' * 10_000, b'{"number": 1}', b'{"writer":"\xff"}'],
    ids=["empty", "braces", "deep objects", "incomplete", "not utf-8"],
)
def test_sealed_bytes_that_are_no_entry_decode_to_none(body: bytes):
    assert decode_entry(seal(body)) is None


def changed(**changes: Any) -> bytes:
    entry = json.loads(entry_json(History().entries[0]))
    entry["event"] = {**entry["event"], **changes.pop("event", {})}
    return seal(json.dumps({**entry, **changes}).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"number": "0"},
        {"number": 0.5},
        {"at": "yesterday"},
        {"at": None},
        {"unknown": 1},
        {"event": {"type": "RunExploded"}},
        {"event": {"unknown": 1}},
        {"event": {"time_scale": "fast"}},
        {"event": {"budget_usd": "much"}},
        {"event": {"storage": None}},
    ],
    ids=str,
)
def test_an_entry_with_a_wrong_field_is_none(changes: dict[str, Any]):
    assert decode_entry(changed()) is not None
    assert decode_entry(changed(**changes)) is None


def test_an_entry_of_up_to_64_kb_is_appended_and_a_larger_one_refused(tmp_path):
    history = History()
    store = open_store(str(tmp_path))
    assert store.put_if_absent("ledger/00000000.json", encode_entry(history.entries[0]))
    clock = ManualClock(history.now + timedelta(seconds=1))
    ledger = Ledger(store, history.uid, "test", clock)
    with pytest.raises(SpotrunError, match="65,536"):
        ledger.append(lambda state: StopRequested(by="x" * ENTRY_SIZE_MAX))
    assert ledger.append(lambda state: StopRequested(by="x" * (ENTRY_SIZE_MAX - 1000))) is not None
    assert ledger.append(lambda state: RunStopped(reason="done")) is not None
    assert ledger.refresh().terminal is not None
