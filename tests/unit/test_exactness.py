"""Two traces compared: the first difference in the order of the training, and what it says about its cause."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotrun.exactness import scope
from spotrun.exactness.causes import Evidence, likely_cause
from spotrun.exactness.comparison import differences, digest_of
from spotrun.exactness.difference import NAMED_MAX, Difference, DifferenceKind, gathered
from spotrun.exactness.folders import Folder
from spotrun.exactness.trace import (
    MEMBERS,
    Begun,
    Ended,
    Evaluated,
    ObjectsRecorded,
    ProcessEnded,
    StoppedForKill,
    Trace,
    TraceRecord,
    Trained,
    Validated,
    decode_record,
    encode_record,
)
from spotrun.exactness.trace_file import TraceFile, path_of_rank, read_ranks
from spotrun.training.python_state.arrays import memory_of
from spotrun.training.trace.digests import digest_of_leaf
from spotrun.verify.kills import PlannedKill
from spotrun.verify.rehearsal import RehearsalResult
from spotrun.verify.verification import compare
from tests.support.histories import History

BATCHES = 4
RESUMED = Evidence(resumes=1)


def first_difference(straight: Trace, interrupted: Trace) -> Difference | None:
    return first_difference_of_ranks({0: straight}, {0: interrupted})


def first_difference_of_ranks(straight: dict[int, Trace], interrupted: dict[int, Trace]) -> Difference | None:
    return gathered(differences(straight, interrupted)).first


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
    records = [*steps(0, 5), StoppedForKill(step=5), *steps(3, 8), ENDED]
    index = max(n for n, record in enumerate(records) if isinstance(record, Trained) and record.step == number + 1)
    records[index] = trained(number, **changes)
    return Trace(records)


def test_redone_steps_that_are_the_same_are_no_difference() -> None:
    interrupted = Trace(
        [*steps(0, 5), StoppedForKill(step=5), *steps(3, 7), StoppedForKill(step=7), *steps(0, 8), ENDED, ENDED]
    )
    assert first_difference(STRAIGHT, interrupted) is None
    assert interrupted.batches_redone() == 2 + 7
    assert interrupted.resumed_after_holds() == [3, 0]


@pytest.mark.parametrize(
    ("changes", "kind", "cause"),
    [
        ({"samples": "[99]"}, DifferenceKind.SAMPLES, "data order is not a function of seed and epoch"),
        ({"data": "x"}, DifferenceKind.DATA, "the dataset, a transform or the collate function depends on the clock"),
        ({"lr": ((0.5).hex(),)}, DifferenceKind.LR, "a scheduler or hook"),
        ({"loss": (0.5).hex()}, DifferenceKind.LOSS, "random numbers come from outside the seeded generators"),
        ({"rng": "x"}, DifferenceKind.RNG, "more or fewer random numbers"),
        ({"step": 99}, DifferenceKind.STEPS, "differ in length"),
    ],
)
def test_each_kind_of_difference_has_its_cause(changes: dict[str, object], kind: DifferenceKind, cause: str) -> None:
    found = first_difference(STRAIGHT, with_change(6, **changes))
    assert found is not None
    assert (found.kind, found.epoch, found.batch, found.step) == (kind, 1, 2, 7)
    assert found.straight != found.interrupted
    assert cause in likely_cause(found, RESUMED)


def test_first_difference_within_a_step_is_the_cause() -> None:
    found = first_difference(STRAIGHT, with_change(6, samples="[1]", data="x", loss="0x1p-1", rng="x"))
    assert found is not None
    assert found.kind is DifferenceKind.SAMPLES
    found = first_difference(STRAIGHT, with_change(6, loss="0x1p-1", rng="x"))
    assert found is not None
    assert found.kind is DifferenceKind.LOSS


def test_difference_in_the_first_pass_is_not_called_resumed() -> None:
    before = Trace([*steps(0, 2), trained(2, loss="0x1p-1"), StoppedForKill(step=3), *steps(2, 8), ENDED])
    found = first_difference(STRAIGHT, before)
    assert found is not None
    assert not found.resumed
    assert "before any interruption" in likely_cause(found, RESUMED)
    after = first_difference(STRAIGHT, with_change(4, loss="0x1p-1"))
    assert after is not None
    assert after.resumed
    assert "no checkpoint holds" in likely_cause(after, RESUMED)


def test_kernels_are_a_cause_only_where_nothing_shows_that_they_are_the_same_each_time() -> None:
    before = first_difference(STRAIGHT, Trace([*steps(0, 2), trained(2, loss="0x1p-1"), *steps(2, 8), ENDED]))
    after = first_difference(STRAIGHT, with_change(6, loss="0x1p-1"))
    again = first_difference(STRAIGHT, with_change(4, loss="0x1p-1"))
    assert before is not None
    assert after is not None
    assert again is not None
    assert "kernels" in likely_cause(before, RESUMED)
    assert "kernels" not in likely_cause(after, RESUMED)
    assert "or random numbers come from outside" in likely_cause(after, RESUMED)
    assert (after.trained_before, again.trained_before) == (False, True)
    told = likely_cause(again, RESUMED)
    assert "although it was the same before the kill" in told
    assert "random numbers" not in told, "the same batch was the same without them"


def test_where_no_trainer_began_at_a_checkpoint_none_is_blamed() -> None:
    for kind in DifferenceKind:
        found = Difference(kind=kind, straight="1", interrupted="2")
        told = likely_cause(found, Evidence(resumes=0))
        assert "no trainer began from a checkpoint" in told
        assert "no checkpoint holds" not in told
        assert "no checkpoint holds" not in likely_cause(msgspec.structs.replace(found, resumed=False), RESUMED)


def test_of_an_object_it_is_not_claimed_that_no_checkpoint_holds_it() -> None:
    found = Difference(kind=DifferenceKind.STATE, name="seen", straight="list of 1", interrupted="list of 3")
    assert "no checkpoint holds the object, or each process adds to" in likely_cause(found, RESUMED)


def test_named_state_is_the_first_likely_cause() -> None:
    found = Difference(kind=DifferenceKind.FILES, name="a", straight="1", interrupted="2")
    assert likely_cause(found, RESUMED).endswith("checkpoints do not hold files outside the work folder either")
    named = Evidence(resumes=1, not_carried=["module.env (Env)"], written_outside=[f"/tmp/{n}" for n in range(7)])
    told = likely_cause(found, named)
    assert "is in no checkpoint: module.env (Env); its writer keeps rows" in told
    assert told.endswith("/tmp/4 and 2 more")
    assert told.index("module.env") < told.index("another process") < told.index("/tmp/0")


def test_all_differences_are_counted_and_the_first_ones_named() -> None:
    other = replace(ENDED, weights={"a": "9", "b": "9"}, optimizer={})
    records = [
        *steps(0, 5),
        StoppedForKill(step=5),
        *steps(3, 6),
        trained(6, loss="x", rng="y"),
        trained(7, loss="x"),
        other,
    ]
    found = gathered(differences({0: STRAIGHT}, {0: Trace([*records, other])}))
    kinds = DifferenceKind
    assert found.counts == {kinds.LOSS: 2, kinds.RNG: 1, kinds.WEIGHTS: 2, kinds.OPTIMIZER: 1}
    told = [(each.kind, each.step or each.name) for each in found.named]
    assert told[:3] == [(kinds.LOSS, 7), (kinds.RNG, 7), (kinds.LOSS, 8)]
    assert told[3:] == [(kinds.WEIGHTS, "a"), (kinds.WEIGHTS, "b"), (kinds.OPTIMIZER, "0.lr")]
    many = gathered(Difference(kind=kinds.FILES, name=str(n), straight="1", interrupted="2") for n in range(1000))
    assert (many.count, len(many.named)) == (1000, NAMED_MAX)


def test_first_difference_is_the_earliest_step_and_not_the_first_line() -> None:
    """Batch 6 was done wrongly in the first pass, batch 5 in the second: 5 comes first in the training."""
    records = [
        *steps(0, 6),
        trained(6, loss="0x1p-1"),
        StoppedForKill(step=7),
        Begun(pid=2, step=5),
        trained(5, data="x"),
    ]
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


def test_each_fit_is_compared_with_itself() -> None:
    first, second = ENDED, replace(ENDED, fit=2, step=16, weights={"a": "5", "b": "6"})
    straight = Trace([*steps(0, 8), first, *steps(8, 16), second])
    assert (
        first_difference(straight, Trace([*steps(0, 8), first, *steps(8, 12), first, *steps(12, 16), second])) is None
    )
    other = Trace([*steps(0, 8), first, *steps(8, 12), replace(first, rng={"torch": "9"}), *steps(12, 16), second])
    found = first_difference(straight, other)
    assert found is not None
    assert found.kind is DifferenceKind.END_RNG


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


def test_names_that_are_not_utf_8_are_recorded_apart(tmp_path: Path) -> None:
    names = [os.fsdecode(b"odd-\xff"), os.fsdecode(b"odd-\xfe"), "\u00e4 \U0001f600"]
    TraceFile(tmp_path / "trace").append(ProcessEnded(pid=1, places=dict.fromkeys(names, "a"), unread={}))
    (record,) = TraceFile(tmp_path / "trace").read().records
    assert isinstance(record, ProcessEnded)
    assert len(record.places) == len(names)
    assert names[-1] in record.places


@pytest.mark.parametrize("line", [b"", b"{}", b"\xff\xfe", encode_record(trained(3))[:-5]])
def test_malformed_trace_line_is_no_record(line: bytes) -> None:
    assert decode_record(line) is None


# -- what a user sees ------------------------------------------------------------------------------------------------


def validated(number: int, **metrics: str) -> Validated:
    return Validated(epoch=number // BATCHES, batch=number % BATCHES, step=number + 1, metrics=metrics)


WHOLE = replace(ENDED, metrics={"val": "0x1p-1"}, places={"module.count": "3", "main().log[0]": "a"}, unread={})
GIVEN = Evaluated(pid=1, stage="test", metrics={"test": "0x1p-1"}, predictions=None)
LEFT = ProcessEnded(pid=1, places={"__main__.seen": "8"}, unread={})


def whole(
    first: int = 0, *, val: str = "0x1p-2", end: Ended = WHOLE, after: tuple[TraceRecord, ...] = (GIVEN, LEFT)
) -> list[TraceRecord]:
    return [*steps(first, 8), validated(7, val=val), end, *after]


def resumed(*records: TraceRecord) -> Trace:
    """Killed after five batches, and resumed after three."""
    return Trace([*steps(0, 5), StoppedForKill(step=5), *records])


def test_values_that_a_user_sees_are_the_same_after_a_resume() -> None:
    assert first_difference(Trace(whole()), resumed(*whole(3))) is None


@pytest.mark.parametrize(
    ("records", "kind", "name"),
    [
        (whole(3, val="0x1p-3"), DifferenceKind.VALIDATION, "val"),
        (whole(3, end=replace(WHOLE, metrics={"val": "0x1p-3"})), DifferenceKind.METRICS, "val"),
        (whole(3, end=replace(WHOLE, metrics={})), DifferenceKind.METRICS, "val"),
        (
            whole(3, end=replace(WHOLE, places=WHOLE.places | {"module.count": "4"})),
            DifferenceKind.STATE,
            "module.count",
        ),
        (whole(3, end=replace(WHOLE, places=WHOLE.places | {"more": "4"})), DifferenceKind.STATE, "more"),
        (whole(3, after=(replace(GIVEN, metrics={"test": "0x1p-3"}), LEFT)), DifferenceKind.RESULTS, "test"),
        (whole(3, after=(replace(GIVEN, predictions="x"), LEFT)), DifferenceKind.RESULTS, "predictions"),
        (whole(3, after=(replace(GIVEN, stage="validate"), LEFT)), DifferenceKind.RESULTS, None),
        (whole(3, after=(LEFT,)), DifferenceKind.RESULTS, None),
        (whole(3, after=(GIVEN, GIVEN, LEFT)), DifferenceKind.RESULTS, None),
        (whole(3, after=()), DifferenceKind.RESULTS, None),
        (whole(3, after=(GIVEN, replace(LEFT, places={"__main__.seen": "9"}))), DifferenceKind.STATE, "__main__.seen"),
    ],
)
def test_each_thing_that_a_user_sees_is_compared(
    records: list[TraceRecord], kind: DifferenceKind, name: str | None
) -> None:
    found = first_difference(Trace(whole()), resumed(*records))
    assert found is not None
    assert (found.kind, found.name) == (kind, name)
    assert found.straight != found.interrupted


def test_a_validation_that_is_missing_or_too_much_is_a_difference() -> None:
    without = [record for record in whole() if not isinstance(record, Validated)]
    for one, other in ((whole(), without), (without, whole())):
        found = first_difference(Trace(one), Trace(other))
        assert found is not None
        assert (found.kind, found.epoch, found.batch) == (DifferenceKind.VALIDATION, 1, 3)


def test_of_a_step_and_an_earlier_validation_the_validation_comes_first() -> None:
    straight = [*steps(0, 4), validated(3, val="a"), *(trained(number) for number in range(4, 8)), WHOLE]
    other = [*steps(0, 4), validated(3, val="b"), *(trained(number, data="x") for number in range(4, 8)), WHOLE]
    found = first_difference(Trace(straight), Trace(other))
    assert found is not None
    assert (found.kind, found.step, found.resumed) == (DifferenceKind.VALIDATION, 4, False)


def test_a_process_that_gave_results_before_it_was_killed_gives_them_again() -> None:
    before = Evaluated(pid=1, stage="validate", metrics={"val": "0x1p+0"})
    straight = Trace([before, *whole()])
    again = [replace(before, pid=2), *whole(3, after=(replace(GIVEN, pid=2), replace(LEFT, pid=2)))]
    killed = Trace([before, *steps(0, 5), StoppedForKill(step=5), *again])
    assert first_difference(straight, killed) is None
    other = Trace([replace(before, metrics={"val": "0x1p+1"}), *steps(0, 5), StoppedForKill(step=5), *again])
    found = first_difference(straight, other)
    assert found is not None
    assert (found.kind, found.name) == (DifferenceKind.RESULTS, "val")


def test_variables_left_by_an_error_are_not_the_end_of_the_training() -> None:
    failed = [GIVEN, replace(LEFT, places={"__main__.seen": "before it"})]
    again = whole(3, after=(replace(GIVEN, pid=2), replace(LEFT, pid=2)))
    assert first_difference(Trace(whole()), Trace([*failed, *steps(0, 5), StoppedForKill(step=5), *again])) is None


def noted(**places: str) -> ObjectsRecorded:
    return ObjectsRecorded(
        moment="the start", places={name.replace("_of_", "[0]."): text for name, text in places.items()}
    )


def test_state_that_differs_before_any_interruption_is_named_and_not_compared() -> None:
    ends = [replace(WHOLE, places={"began": began, "rows[7].seconds": began, "kept": "1"}) for began in ("1", "2", "3")]
    straight = Trace([noted(began="1", rows_of_seconds="1", kept="0"), *whole(end=ends[0])])
    again = whole(3, end=ends[1])
    killed = resumed(again[0], noted(began="9", kept="7"), *again[1:])
    found = first_difference(straight, killed)
    assert found is not None, "what a resumed process notes is no excuse"
    early = [noted(began="2", rows_of_seconds="2", kept="0"), *resumed(*whole(3, end=ends[1])).records]
    assert first_difference(straight, Trace(early)) is None
    named = scope.not_compared({0: straight}, {0: Trace(early)})
    assert [each.name for each in named] == ["began", "rows[].seconds"]
    other = [*early[:-3], replace(ends[1], places=ends[1].places | {"kept": "2"}), GIVEN, LEFT]
    found = first_difference(straight, Trace(other))
    assert found is not None
    assert found.name == "kept"


@pytest.mark.parametrize(
    ("at_end", "in_resumed", "found"),
    [
        ({"buffer": "b", "buffer.size": "1", "kept": "1"}, {"kept": "1"}, None),
        ({"buffer": "b", "buffer.size": "2", "kept": "1"}, {"kept": "1"}, "__main__.buffer"),
        ({"buffer": "b", "buffer.size": "1", "kept": "1"}, {"buffer": "b", "kept": "1"}, "__main__.buffer.size"),
        ({"buffer": "b", "buffer.size": "1", "kept": "1"}, {"kept": "2"}, "__main__.kept"),
    ],
    ids=["unchanged and not set", "changed and not set", "set in part", "another one differs"],
)
def test_a_global_that_only_the_first_start_sets_and_nothing_changes_is_not_compared(
    at_end: dict[str, str], in_resumed: dict[str, str], found: str | None
) -> None:
    """For example the variables of code that makes the data unless they are there, or loads what they are."""

    def of_script(places: dict[str, str]) -> dict[str, str]:
        return {f"__main__.{name}": text for name, text in places.items()}

    begun = {"buffer": "b", "buffer.size": "1", "kept": "0", "start": "0"}
    at_end, in_resumed = at_end | {"start": "0"}, in_resumed | {"start": "3", "loaded": "dict of 2", "loaded['a']": "1"}
    noted = ObjectsRecorded(moment="batch 1", places=of_script(begun))
    straight = Trace([noted, *whole(end=replace(WHOLE, places=of_script(at_end)), after=())])
    killed = resumed(*whole(3, end=replace(WHOLE, places=of_script(in_resumed)), after=()))
    first = first_difference(straight, killed)
    assert (None if first is None else first.name) == found
    left_out = [each.name for each in scope.not_compared({0: straight}, {0: killed}) if each.why == scope.SET_BEFORE]
    buffer = ["__main__.buffer"] if found in (None, "__main__.kept") else []
    assert left_out == [*buffer, "__main__.loaded", "__main__.start"]


def test_each_column_of_a_matrix_with_one_row_has_a_digest() -> None:
    """torch cannot view one item as bytes if its stride is not 1, as in the weights of a layer with one output."""
    row = torch.randn(1, 8)
    assert len({digest_of_leaf(row[:, column]) for column in range(8)}) == 8
    assert digest_of_leaf(row[:, 3]) == digest_of_leaf(row[:, 3].clone())
    assert memory_of(row[:, 3]).tobytes() == row[0, 3].numpy().tobytes()


def table(at: str, *losses: str) -> dict[str, str]:
    """What a trace has of a list of rows, each with a time and a loss."""
    found = {"rows": f"list of {len(losses)}"}
    for number, loss in enumerate(losses):
        found |= {f"rows[{number}]": "tuple of 2", f"rows[{number}][0]": at, f"rows[{number}][1]": loss}
    return found


def test_a_time_in_the_rows_of_an_object_hides_nothing_else_of_them() -> None:
    def training(at: str, *losses: str) -> list[TraceRecord]:
        end = replace(WHOLE, places=table(at, *losses))
        return [ObjectsRecorded(moment="batch 1", places=table(at, "0.5")), *whole(end=end, after=())]

    straight = Trace(training("1", "0.5", "0.25"))
    assert first_difference(straight, Trace(training("2", "0.5", "0.25"))) is None
    (named,) = scope.not_compared({0: straight}, {0: Trace(training("2", "0.5", "0.25"))})
    assert named.name == "rows[][0]"
    found = first_difference(straight, Trace(training("2", "0.5", "0.75")))
    assert found is not None
    assert found.name == "rows[1][1]"
    late = [[*whole(end=replace(WHOLE, places=table(at, "0.5", loss)))] for at, loss in ("13", "23", "34")]
    traces = [{0: Trace(records)} for records in late]
    names = [found.name for found in differences(traces[0], traces[2], traces[1])]
    assert names == ["rows[1][1]"]


def test_a_time_of_one_callback_is_not_that_of_another() -> None:
    def training(at: str, count: str) -> Trace:
        places = {"callbacks[0].last": at, "callbacks[1].last": count}
        return Trace(
            [ObjectsRecorded(moment="batch 1", places=places), *whole(end=replace(WHOLE, places=places), after=())]
        )

    early = [ObjectsRecorded(moment="batch 1", places={"callbacks[0].last": "2", "callbacks[1].last": "7"})]
    end = replace(WHOLE, places={"callbacks[0].last": "3", "callbacks[1].last": "8"})
    found = first_difference(training("1", "7"), Trace([*early, *whole(end=end, after=())]))
    assert found is not None
    assert found.name == "callbacks[1].last"


@pytest.mark.parametrize("early", [True, False])
def test_a_set_of_process_numbers_is_not_compared_by_its_size(early: bool) -> None:
    def training(pids: str, size: int, seen: str = "8") -> dict[int, Trace]:
        places = {"pids": f"set of {size}", f"pids{MEMBERS}": pids}
        noted = [ObjectsRecorded(moment="batch 1", places=places)] if early else []
        return {0: Trace([*noted, *whole(end=replace(WHOLE, places=places | {"seen": seen}), after=())])}

    straight, again, killed = training("1", 1), training("2", 1), training("3 4 5", 3)
    assert not list(differences(straight, killed, again))
    assert f"pids{MEMBERS}" in {each.name for each in scope.not_compared(straight, killed, again)}
    assert [each.name for each in differences(straight, training("3 4 5", 3, seen="9"), again)] == ["seen"]


def test_a_set_that_is_the_same_in_two_trainings_is_compared() -> None:
    one, other = (
        {0: Trace(whole(end=replace(WHOLE, places={"seen": f"set of {size}", f"seen{MEMBERS}": text}), after=()))}
        for size, text in ((1, "1"), (2, "1 2"))
    )
    assert [each.name for each in differences(one, other, one)] == ["seen", f"seen{MEMBERS}"]


def rehearsed(folder: Path, trace: Trace, *kills: PlannedKill, **files: str) -> RehearsalResult:
    folder.mkdir()
    for name, content in files.items():
        (folder / f"{name}.jsonl").write_text(content)
    left = Folder(folder, frozenset(f"{name}.jsonl" for name in files))
    state = History().state
    return RehearsalResult(
        ranks={0: trace}, work=left, refused={}, not_carried=(), kills=kills, duration_s=1.0, state=state
    )


KILLED = PlannedKill(step=5, victim="trainer")


def history(drawn: str, steps: range = range(8)) -> str:
    return "".join(f'{{"step": {step}, "beat": {drawn}{step}}}\n' for step in steps)


def test_state_that_differs_between_straight_trainings_is_named_and_no_difference(tmp_path: Path) -> None:
    def training(name: str, drawn: str, trace: Callable[..., Trace]) -> RehearsalResult:
        ends = replace(WHOLE, places={"module.took": drawn, "module.count": "3"}, metrics={"loss": "1", "beat": drawn})
        files = {"history": history(drawn), f"log-{drawn}": "a\n"}
        return rehearsed(tmp_path / name, trace(*whole(end=ends)), **files)

    straight, again = (training(*each, lambda *all_: Trace([*all_])) for each in (("one", "1"), ("again", "2")))
    killed = training("killed", "3", resumed)
    alone = compare(straight, killed, 0, str)
    assert set(alone.differences.counts) == {DifferenceKind.STATE, DifferenceKind.METRICS, DifferenceKind.FILES}
    said = compare(straight, killed, 0, str, again)
    assert said.differences.first is None
    assert {each.name for each in said.not_compared if each.why == scope.VARIES_AGAIN} == {
        "module.took", "metrics beat", "file history.jsonl, line #['beat']", "file log-1.jsonl", "file log-3.jsonl",
    }  # fmt: skip
    assert [each.count for each in said.compared if each.what == "files"] == [1]


def test_rows_that_a_resume_lost_are_a_difference_though_their_times_vary(tmp_path: Path) -> None:
    straight, again = (rehearsed(tmp_path / drawn, Trace(whole()), history=history(drawn)) for drawn in "12")
    killed = rehearsed(tmp_path / "3", resumed(*whole(3)), KILLED, history=history("3", range(5, 8)))
    said = compare(straight, killed, 0, str, again)
    assert not said.identical
    found = said.differences.first
    assert found is not None
    assert (found.kind, found.name, found.where) == (DifferenceKind.FILES, "history.jsonl", "line 1['step']")
    assert said.likely_cause is not None
    assert "keeps rows that no checkpoint holds" in said.likely_cause
    assert "it holds a time" not in said.likely_cause, "two straight trainings have the same rows"


def test_object_that_could_not_be_read_in_one_training_is_named() -> None:
    end = replace(WHOLE, places={"module.count": "3", "main().log[0]": "a"}, unread={"main().it": "zip"})
    other = replace(WHOLE, places=end.places | {"main().it": "zip, 3 left"})
    assert first_difference(Trace(whole(end=end)), resumed(*whole(3, end=other))) is None
    (named,) = scope.not_compared({0: Trace(whole(end=end))}, {0: resumed(*whole(3, end=other))})
    assert (named.name, named.why) == ("main().it", "zip cannot be inspected")


def test_comparison_counts_what_is_the_same() -> None:
    said = {each.what: each.count for each in scope.compared({0: Trace(whole()), 1: Trace(whole())})}
    assert said == {
        "ranks": 2, "steps": 8, "validations": 1, "weights": 4, "optimizer": 2, "rng": 2, "metrics": 2, "state": 6,
        "results": 2,
    }  # fmt: skip


# -- ranks and older traces ------------------------------------------------------------------------------------------


def test_each_rank_is_compared_with_itself() -> None:
    one, other = Trace(whole()), Trace([replace(r, data="mine") if isinstance(r, Trained) else r for r in whole()])
    assert first_difference_of_ranks({0: one, 1: other}, {0: one, 1: other}) is None
    found = first_difference_of_ranks({0: one, 1: other}, {0: one, 1: one})
    assert found is not None
    assert (found.kind, found.rank, found.step) == (DifferenceKind.DATA, 1, 1)
    alone = first_difference_of_ranks({0: one, 1: other}, {0: one})
    assert alone is not None
    assert (alone.straight, alone.interrupted) == ("2 processes", "1 processes")


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "straight.trace"
    (tmp_path / "straight.trace-own").touch()
    for rank in (0, 1, 10):
        TraceFile(path_of_rank(path, rank)).append(StoppedForKill(step=rank))
    assert {rank: trace.held_at for rank, trace in read_ranks(path).items()} == {0: [0], 1: [1], 10: [10]}


def test_trace_of_an_earlier_spotrun_is_read_and_its_gaps_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    lines = [
        b'{"type":"begun","pid":3,"step":0}',
        b'{"type":"trained","epoch":0,"batch":0,"step":1,"samples":null,"data":"d","lr":[["0x1p+0"]],"loss":null,"rng":"r"}',
        b'{"type":"ended","step":1,"weights":{"a":"1"},"optimizer":{},"rng":{"torch":"2"}}',
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    traces = read_ranks(path)
    assert [type(record) for record in traces[0].records] == [Begun, Trained, Ended]
    assert first_difference_of_ranks(traces, traces) is None
    assert [each.why for each in scope.not_compared(traces, traces)] == [scope.OLDER]


def test_each_fit_is_compared_with_itself_and_none_may_be_missing() -> None:
    second = replace(WHOLE, fit=2, places={"module.count": "9"})
    straight = Trace([*whole(after=()), second])
    assert first_difference(straight, resumed(*whole(3, after=(WHOLE, second)))) is None
    missing = first_difference(straight, resumed(*whole(3, after=())))
    assert missing is not None
    assert (missing.name, missing.straight, missing.interrupted) == ("of fit() 2", "ended", "not ended")
    other = first_difference(straight, resumed(*whole(3, after=(replace(second, places={"module.count": "8"}),))))
    assert other is not None
    assert other.name == "module.count"
