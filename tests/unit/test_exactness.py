"""Two traces compared: the first difference in the order of the training, and what it says about its cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spotrun.exactness.comparison import DifferenceKind, digest_of, first_difference
from spotrun.exactness.trace import Begun, Ended, Held, Trace, TraceRecord, Trained, decode_record, encode_record
from spotrun.exactness.trace_file import TraceFile

BATCHES = 4


def trained(number: int, **changes: object) -> Trained:
    """Batch `number` of the whole training, as a deterministic script does it each time."""
    record = Trained(
        epoch=number // BATCHES,
        batch=number % BATCHES,
        step=number + 1,
        samples=f"[{number}]",
        data=f"d{number}",
        lr=((float(number).hex(),),),
        loss=(1 / (number + 1)).hex(),
        rng=f"r{number}",
    )
    return replace(record, **changes)


ENDED = Ended(step=8, weights={"a": "1", "b": "2"}, optimizer={"0.lr": "3"}, rng={"torch": "4"})


def steps(first: int, end: int) -> list[TraceRecord]:
    return [Begun(pid=1, step=first), *(trained(number) for number in range(first, end))]


STRAIGHT = Trace([*steps(0, 8), ENDED])


def with_change(number: int, **changes: object) -> Trace:
    """Killed after five batches, resumed after three; batch `number` is changed in its last pass."""
    records = [*steps(0, 5), Held(step=5), *steps(3, 8), ENDED]
    index = max(n for n, record in enumerate(records) if isinstance(record, Trained) and record.step == number + 1)
    records[index] = trained(number, **changes)
    return Trace(records)


def test_redone_steps_that_are_the_same_are_no_difference() -> None:
    interrupted = Trace([*steps(0, 5), Held(step=5), *steps(3, 7), Held(step=7), *steps(0, 8), ENDED, ENDED])
    assert first_difference(STRAIGHT, interrupted) is None
    assert interrupted.batches_redone() == 2 + 7
    assert interrupted.resumed_after_holds() == [3, 0]


@pytest.mark.parametrize(
    ("changes", "kind", "cause"),
    [
        ({"samples": "[99]"}, DifferenceKind.SAMPLES, "data order is not a function of seed and epoch"),
        ({"data": "x"}, DifferenceKind.DATA, "the dataset or a transform draws"),
        ({"lr": ((0.5).hex(),)}, DifferenceKind.LR, "a scheduler or hook"),
        ({"loss": (0.5).hex()}, DifferenceKind.LOSS, "random numbers drawn outside of the seeded generators"),
        ({"rng": "x"}, DifferenceKind.RNG, "more or fewer random numbers"),
        ({"step": 99}, DifferenceKind.STEPS, "differ in length"),
    ],
)
def test_each_kind_of_difference_has_its_cause(changes: dict[str, object], kind: DifferenceKind, cause: str) -> None:
    found = first_difference(STRAIGHT, with_change(6, **changes))
    assert found is not None
    assert (found.kind, found.epoch, found.batch, found.step) == (kind, 1, 2, 7)
    assert found.straight != found.interrupted
    assert cause in found.likely_cause


def test_what_comes_first_in_a_step_is_the_cause_of_what_comes_later() -> None:
    found = first_difference(STRAIGHT, with_change(6, samples="[1]", data="x", loss="0x1p-1", rng="x"))
    assert found is not None
    assert found.kind is DifferenceKind.SAMPLES
    found = first_difference(STRAIGHT, with_change(6, loss="0x1p-1", rng="x"))
    assert found is not None
    assert found.kind is DifferenceKind.LOSS


def test_the_first_pass_is_told_from_one_after_a_resume() -> None:
    before = Trace([*steps(0, 2), trained(2, loss="0x1p-1"), Held(step=3), *steps(2, 8), ENDED])
    found = first_difference(STRAIGHT, before)
    assert found is not None
    assert not found.resumed
    assert "before any interruption" in found.likely_cause
    after = first_difference(STRAIGHT, with_change(4, loss="0x1p-1"))
    assert after is not None
    assert after.resumed
    assert "no checkpoint holds" in after.likely_cause


def test_the_earliest_place_is_told_and_not_the_first_line() -> None:
    """Batch 6 was done wrongly in the first pass, batch 5 in the second: 5 comes first in the training."""
    records = [*steps(0, 6), trained(6, loss="0x1p-1"), Held(step=7), Begun(pid=2, step=5), trained(5, data="x")]
    found = first_difference(STRAIGHT, Trace([*records, trained(6), trained(7), ENDED]))
    assert found is not None
    assert (found.kind, found.step) == (DifferenceKind.DATA, 6)


@pytest.mark.parametrize("missing", range(8))
def test_no_step_may_be_missing(missing: int) -> None:
    kept = [record for record in STRAIGHT.records if record != trained(missing)]
    found = first_difference(STRAIGHT, Trace(kept))
    assert found is not None
    assert (found.kind, found.step, found.interrupted) == (DifferenceKind.STEPS, missing + 1, "not trained")


def test_no_step_may_be_added_and_an_end_may_not_be_missing() -> None:
    more = first_difference(STRAIGHT, Trace([*steps(0, 9), ENDED]))
    assert more is not None
    assert (more.kind, more.straight, more.interrupted) == (DifferenceKind.STEPS, "not trained", "trained")
    unended = first_difference(STRAIGHT, Trace(steps(0, 8)))
    assert unended is not None
    assert (unended.straight, unended.interrupted) == ("ended", "not ended")


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"weights": {"a": "1", "b": "9"}}, DifferenceKind.WEIGHTS, "b"),
        ({"weights": {"a": "1"}}, DifferenceKind.WEIGHTS, "b"),
        ({"optimizer": {"0.lr": "9"}}, DifferenceKind.OPTIMIZER, "0.lr"),
        ({"rng": {"torch": "9"}}, DifferenceKind.END_RNG, "torch"),
    ],
)
def test_an_end_that_differs_names_the_part(changes: dict[str, object], kind: DifferenceKind, name: str) -> None:
    found = first_difference(STRAIGHT, Trace([*steps(0, 8), ENDED, replace(ENDED, **changes)]))
    assert found is not None
    assert (found.kind, found.name, found.step) == (kind, name, None)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 7)), max_size=6), st.data())
def test_any_history_of_kills_is_the_same_and_any_change_in_it_is_found(
    kills: list[tuple[int, int]], data: st.DataObject
) -> None:
    records: list[TraceRecord] = []
    at = 0
    for end, back_to in kills:
        records += steps(at, max(at, end))
        at = min(back_to, max(at, end))
    records += [*steps(at, 8), ENDED]
    assert first_difference(STRAIGHT, Trace(records)) is None
    index = data.draw(st.sampled_from([n for n, record in enumerate(records) if isinstance(record, Trained)]))
    changed = replace(records[index], data="changed")
    records[index] = changed
    found = first_difference(STRAIGHT, Trace(records))
    assert found is not None
    assert (found.kind, found.step) == (DifferenceKind.DATA, changed.step)


def test_nan_is_the_same_as_nan_and_not_as_a_number() -> None:
    nan = float("nan").hex()
    same = Trace([Begun(pid=1, step=0), trained(0, loss=nan), ENDED])
    assert first_difference(same, same) is None
    assert first_difference(same, Trace([Begun(pid=1, step=0), trained(0), ENDED])) is not None


def test_a_digest_does_not_depend_on_the_order_of_its_parts() -> None:
    assert digest_of({"a": "1", "b": "2"}) == digest_of({"b": "2", "a": "1"}) != digest_of({"a": "2", "b": "1"})


def test_a_torn_line_is_dropped_and_what_follows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    TraceFile(path).append(trained(0))
    with path.open("ab") as file:
        file.write(encode_record(trained(1))[:20])  # killed while it wrote
    reader = TraceFile(path)
    assert reader.read().records == [trained(0)]
    TraceFile(path).append(trained(1))
    assert reader.read().records == TraceFile(path).read().records == [trained(0), trained(1)]


@pytest.mark.parametrize("line", [b"", b"{}", b"\xff\xfe", encode_record(trained(3))[:-5]])
def test_what_is_no_record_is_none(line: bytes) -> None:
    assert decode_record(line) is None
