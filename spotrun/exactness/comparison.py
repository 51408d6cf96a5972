"""Compares two trainings of one script bit for bit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from spotrun.exactness.difference import Difference, DifferenceKind, difference, of_parts
from spotrun.exactness.places import VaryingPlaces
from spotrun.exactness.trace import MEMBERS, BatchPosition, Ended, Evaluated, ProcessEnded, Trace, Trained, Validated

_GLOBAL = re.compile(r"__main__\.\w+")

Place = tuple[BatchPosition, int]
"""
The place of a record in a training: the batch, with OF_BATCH for the training of this batch, or OF_VALIDATION for a
validation after it.
"""
OF_BATCH, OF_VALIDATION = 0, 1


MAY_VARY = frozenset(
    {
        DifferenceKind.VALIDATION,
        DifferenceKind.OPTIMIZER,
        DifferenceKind.METRICS,
        DifferenceKind.STATE,
        DifferenceKind.RESULTS,
        DifferenceKind.FILES,
    }
)
"""
Kinds of objects that can differ between two trainings with the same steps and weights, for example because an object
contains a time of day or a process name.
"""


def differences(
    straight: Mapping[int, Trace], interrupted: Mapping[int, Trace], again: Mapping[int, Trace] | None = None
) -> Iterator[Difference]:
    """
    Yield all differences, the earliest first. Yield nothing if the trainings are the same bit for bit. Each argument
    contains one trace for each rank. `straight` and `again` are two uninterrupted trainings.

    Every batch of `straight` must also be in `interrupted`. A batch may be in `interrupted` several times, because each
    resume repeats some batches. Each repetition is compared with `straight`, and the first repetition that differs is
    reported. An object that differs even between `straight` and `again` is not compared.
    """
    varying = varying_names(straight, again)
    for found in _all(straight, interrupted):
        if found.kind not in varying or not _is_left_out(found.name or "", varying[found.kind]):
            yield found


def varying_names(
    straight: Mapping[int, Trace], again: Mapping[int, Trace] | None
) -> dict[DifferenceKind, VaryingPlaces]:
    """Return the names of the objects in which two uninterrupted trainings differ, for each kind in `MAY_VARY`."""
    names: dict[DifferenceKind, set[str]] = {}
    for found in () if again is None else _all(straight, again):
        if found.kind in MAY_VARY:
            names.setdefault(found.kind, set()).add(found.name or "")
    return {kind: VaryingPlaces(each, _known(straight)) for kind, each in names.items()}


def _known(traces: Mapping[int, Trace]) -> set[str]:
    found = set[str]()
    for trace in traces.values():
        for end in trace.ended:
            found |= {*end.optimizer, *(end.metrics or ()), *(end.places or ())}
        for left in trace.all_of(ProcessEnded):
            found |= left.places.keys()
        for evaluated in trace.all_of(Evaluated):
            found |= evaluated.metrics.keys()
        for validated in trace.all_of(Validated):
            found |= validated.metrics.keys()
    return found


def _all(straight: Mapping[int, Trace], interrupted: Mapping[int, Trace]) -> Iterator[Difference]:
    if straight.keys() != interrupted.keys():
        sizes = [f"{len(traces)} processes" for traces in (straight, interrupted)]
        yield difference(DifferenceKind.STEPS, *sizes)
        return
    found = [(place, rank, one) for rank in straight for place, one in _on_the_way(straight[rank], interrupted[rank])]
    for _, rank, one in sorted(found, key=lambda item: item[:2]):
        yield _of_rank(one, rank, straight)
    for compare in (_of_ends, _of_results):
        for rank in straight:
            for one in compare(straight[rank], interrupted[rank]):
                yield _of_rank(one, rank, straight)


def _of_rank(found: Difference, rank: int, ranks: Mapping[int, Trace]) -> Difference:
    return replace(found, rank=rank) if len(ranks) > 1 else found


def digest_of(parts: Mapping[str, str]) -> str:
    """Return one sha256 over all names and digests in `parts`."""
    return sha256("".join(f"{name}={parts[name]}\n" for name in sorted(parts)).encode()).hexdigest()


# -- steps and validations -------------------------------------------------------------------------------------------


def _on_the_way(straight: Trace, interrupted: Trace) -> Iterator[tuple[Place, Difference]]:
    for position, one in _of_steps(straight, interrupted):
        yield (position, OF_BATCH), one
    for position, one in _of_validations(straight, interrupted):
        yield (position, OF_VALIDATION), one


def _of_steps(straight: Trace, interrupted: Trace) -> Iterator[tuple[BatchPosition, Difference]]:
    wanted = {record.position: record for _, record in straight.trained()}
    done: dict[BatchPosition, list[tuple[int, Trained]]] = {}
    for number, record in interrupted.trained():
        done.setdefault(record.position, []).append((number, record))
    for position in sorted(wanted.keys() | done.keys()):
        if position not in wanted or position not in done:
            yield position, _of_length(wanted.get(position), done.get(position))
        else:
            yield from ((position, one) for one in _of_batch(wanted[position], done[position]))


def _of_length(wanted: Trained | None, done: list[tuple[int, Trained]] | None) -> Difference:
    known = wanted if wanted is not None else done[0][1] if done else None
    assert known is not None
    straight, interrupted = ("trained" if trained else "not trained" for trained in (wanted is not None, done))
    return difference(DifferenceKind.STEPS, straight, interrupted, **_place_of(known))


def _of_batch(wanted: Trained, passes: Sequence[tuple[int, Trained]]) -> Iterator[Difference]:
    seen, before = set[DifferenceKind](), False
    for number, done in passes:
        for kind, one, other in _pairs(wanted, done):
            if one != other and kind not in seen:
                seen.add(kind)
                place = _place_of(wanted) | {"resumed": number > 0, "trained_before": before}
                yield difference(kind, str(one), str(other), **place)
        before = before or done == wanted


def _pairs(wanted: Trained, done: Trained) -> Iterator[tuple[DifferenceKind, object, object]]:
    yield DifferenceKind.SAMPLES, wanted.samples, done.samples
    yield DifferenceKind.DATA, wanted.data, done.data
    yield DifferenceKind.LR, _listed(wanted.lr), _listed(done.lr)
    yield DifferenceKind.LOSS, wanted.loss, done.loss
    yield DifferenceKind.RNG, wanted.rng, done.rng
    yield DifferenceKind.STEPS, wanted.step, done.step


def _of_validations(straight: Trace, interrupted: Trace) -> Iterator[tuple[BatchPosition, Difference]]:
    wanted = {record.position: record for record in straight.all_of(Validated)}
    done = {record.position: record for record in interrupted.all_of(Validated)}
    for position in wanted.keys() ^ done.keys():
        known = wanted.get(position) or done[position]
        there = ["done" if position in each else "not done" for each in (wanted, done)]
        yield position, difference(DifferenceKind.VALIDATION, *there, **_place_of(known))
    seen = set[tuple[BatchPosition, str | None]]()
    for number, record in interrupted.passes():
        if isinstance(record, Validated) and record.position in wanted:
            one, place = wanted[record.position], _place_of(record) | {"resumed": number > 0}
            for found in of_parts(DifferenceKind.VALIDATION, one.metrics, record.metrics, **place):
                if (record.position, found.name) not in seen:
                    seen.add((record.position, found.name))
                    yield record.position, found


def _place_of(record: Trained | Validated) -> dict[str, Any]:
    return {"epoch": record.epoch, "batch": record.batch, "step": record.step}


def _listed(rates: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(", ".join(groups) for groups in rates)


# -- the end of the training -----------------------------------------------------------------------------------------


def _of_ends(straight: Trace, interrupted: Trace) -> Iterator[Difference]:
    if not straight.ended or not interrupted.ended:
        ends = ["ended" if trace.ended else "not ended" for trace in (straight, interrupted)]
        if ends[0] != ends[1]:
            yield difference(DifferenceKind.STEPS, *ends)
        return
    varying, set_before = varying_places(straight, interrupted), places_set_before(straight, interrupted)
    ends_of = [{end.fit: end for end in trace.ended} for trace in (straight, interrupted)]
    for fit in sorted(ends_of[0].keys() ^ ends_of[1].keys()):
        ends = ["ended" if fit in each else "not ended" for each in ends_of]
        yield difference(DifferenceKind.STEPS, *ends, name=f"of fit() {fit}")
    seen = set[tuple[int, DifferenceKind, str | None]]()
    for done in interrupted.ended:
        for found in _of_end(ends_of[0][done.fit], done, varying, set_before) if done.fit in ends_of[0] else ():
            if (done.fit, found.kind, found.name) not in seen:
                seen.add((done.fit, found.kind, found.name))
                yield found


def _of_end(wanted: Ended, done: Ended, varying: VaryingPlaces, set_before: Set[str]) -> Iterator[Difference]:
    yield from of_parts(DifferenceKind.WEIGHTS, wanted.weights, done.weights)
    yield from of_parts(DifferenceKind.OPTIMIZER, wanted.optimizer, done.optimizer)
    yield from of_parts(DifferenceKind.END_RNG, wanted.rng, done.rng)
    yield from of_parts(DifferenceKind.METRICS, wanted.metrics or {}, done.metrics or {})
    yield from of_parts(DifferenceKind.STATE, *_steady(wanted, done, varying, set_before))


def _steady(
    wanted: Ended | ProcessEnded, done: Ended | ProcessEnded, varying: VaryingPlaces, set_before: Set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """
    Return, for each of the two trainings, the content of each place that can be compared. Leave out places that vary
    even without an interruption, places that could be inspected in only one of the trainings, and those in `set_before`
    (`places_set_before`). The report lists them as not compared.
    """
    unread = {*(wanted.unread or ()), *(done.unread or ())}
    one, other = (
        {place: text for place, text in (each.places or {}).items() if not _is_left_out(place, varying)}
        for each in (wanted, done)
    )
    left_out = {place for place in one.keys() ^ other.keys() if place in unread} | set_before
    kept = [{place: text for place, text in each.items() if place not in left_out} for each in (one, other)]
    return kept[0], kept[1]


def _is_left_out(place: str, varying: VaryingPlaces) -> bool:
    """
    Return True if the comparison leaves out a place, because the place varies, or because it is the size of a set whose
    members vary.
    """
    return place in varying or f"{place}{MEMBERS}" in varying


def varying_places(straight: Trace, interrupted: Trace) -> VaryingPlaces:
    """
    Return the places whose contents differ even before any interruption, for example because they contain a time or the
    name of a process.
    """
    found, known = set[str](), set[str]()
    here, there = straight.noted(), interrupted.noted()
    for moment in here.keys() & there.keys():
        one, other = here[moment].places, there[moment].places
        known |= one.keys() | other.keys()
        found |= {place for place in one.keys() | other.keys() if one.get(place) != other.get(place)}
    return VaryingPlaces(found, known)


def places_set_before(straight: Trace, interrupted: Trace) -> set[str]:
    """
    Return the places in global variables of the main script that the training never changes, and that only one of the
    trainings has, or that have another plain value in the resumed script: the code before the training took another
    branch, for example because a file was there already.
    """
    begun = next(iter(straight.noted().values()), None)
    if begun is None:
        return set()
    at_ends = [item for end in straight.ends for item in (end.places or {}).items()]
    changed = {global_of(place) for place, text in at_ends if begun.places.get(place) != text}
    here, there = (
        {place: text for end in trace.ends for place, text in (end.places or {}).items()}
        for trace in (straight, interrupted)
    )
    here = begun.places | here
    sizes, others = Counter(map(global_of, here)), Counter(map(global_of, there))
    set_before = sizes.keys() ^ others.keys()
    set_before |= {name for name in sizes if sizes[name] == others[name] == 1 and here.get(name) != there.get(name)}
    return {place for place in {**here, **there} if global_of(place) in set_before - changed - {""}}


def global_of(place: str) -> str:
    """Return the global variable in which the place is, such as `__main__.found`; "" if it is elsewhere."""
    found = _GLOBAL.match(place)
    return found[0] if found else ""


# -- results ---------------------------------------------------------------------------------------------------------


def _of_results(straight: Trace, interrupted: Trace) -> Iterator[Difference]:
    """
    Yield the differences in the results of `test`, `validate` and `predict`.

    The last process of the interrupted training must have produced the same results as the uninterrupted training, in
    the same order. An earlier process may have been interrupted before it produced all of them, so its results only
    have to match the first of these.

    The variables of the script are compared only at the end of the last process, because the earlier processes did not
    reach the end of the script.
    """
    given, again = straight.of_each_process(), interrupted.of_each_process()
    wanted = given[-1] if given else ()
    varying, set_before = varying_places(straight, interrupted), places_set_before(straight, interrupted)
    seen = set[tuple[int, str | None]]()
    for number, given_now in enumerate(again or [()], 1):
        is_last = number >= len(again)
        done = given_now if is_last else tuple(each for each in given_now if isinstance(each, Evaluated))
        for place, (one, other) in enumerate(zip(wanted, done, strict=False)):
            for found in _of_one_result(one, other, varying, set_before):
                if (place, found.name) not in seen:
                    seen.add((place, found.name))
                    yield found
        if len(done) > len(wanted) or (is_last and len(done) < len(wanted)):
            yield difference(DifferenceKind.RESULTS, *(f"{len(each)} results" for each in (wanted, done)))


def _of_one_result(
    wanted: Evaluated | ProcessEnded, done: Evaluated | ProcessEnded, varying: VaryingPlaces, set_before: Set[str]
) -> Iterator[Difference]:
    if isinstance(wanted, ProcessEnded) and isinstance(done, ProcessEnded):
        yield from of_parts(DifferenceKind.STATE, *_steady(wanted, done, varying, set_before))
    elif isinstance(wanted, Evaluated) and isinstance(done, Evaluated) and wanted.stage == done.stage:
        one, other = (each.metrics | _predicted(each) for each in (wanted, done))
        yield from of_parts(DifferenceKind.RESULTS, one, other, where=f"{wanted.stage}()")
    else:
        yield difference(DifferenceKind.RESULTS, _what(wanted), _what(done))


def _predicted(result: Evaluated) -> dict[str, str]:
    return {} if result.predictions is None else {"predictions": result.predictions}


def _what(result: Evaluated | ProcessEnded) -> str:
    return f"{result.stage}()" if isinstance(result, Evaluated) else "the end of the process"
