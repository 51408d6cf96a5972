"""
Compares two trainings of one script bit for bit, and names the likely cause of the first difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from spotrun.exactness.difference import Difference, DifferenceKind, difference, of_parts
from spotrun.exactness.trace import BatchPosition, Ended, Evaluated, Left, Trace, Trained, Validated

Place = tuple[BatchPosition, int]
"""Where in a training something comes: a batch, and what comes after it."""
OF_BATCH, OF_VALIDATION = 0, 1
_NUMBER = re.compile(r"\[\d+\]")


def first_difference(straight: Trace, interrupted: Trace) -> Difference | None:
    """
    The earliest difference between the two; None if they are the same, bit for bit.

    It compares every pass of `interrupted` over a batch, and no batch of `straight` may be missing.
    """
    return first_difference_of_ranks({0: straight}, {0: interrupted})


def first_difference_of_ranks(straight: Mapping[int, Trace], interrupted: Mapping[int, Trace]) -> Difference | None:
    """As `first_difference`, of trainings in several processes, each with its own trace."""
    if straight.keys() != interrupted.keys():
        sizes = [f"{len(traces)} processes" for traces in (straight, interrupted)]
        return difference(DifferenceKind.STEPS, *sizes)
    found = [(place, rank, one) for rank in straight for place, one in _on_the_way(straight[rank], interrupted[rank])]
    if found:
        _, rank, first = min(found, key=lambda item: item[:2])
        return _of_rank(first, rank, straight)
    for compare in (_of_ends, _of_results):
        for rank in straight:
            if (one := compare(straight[rank], interrupted[rank])) is not None:
                return _of_rank(one, rank, straight)
    return None


def _of_rank(found: Difference, rank: int, ranks: Mapping[int, Trace]) -> Difference:
    return replace(found, rank=rank) if len(ranks) > 1 else found


def digest_of(parts: Mapping[str, str]) -> str:
    """One sha256 over named digests."""
    return sha256("".join(f"{name}={parts[name]}\n" for name in sorted(parts)).encode()).hexdigest()


# -- steps and validations -------------------------------------------------------------------------------------------


def _on_the_way(straight: Trace, interrupted: Trace) -> Iterable[tuple[Place, Difference]]:
    """The first difference of batches, and the first one of validations."""
    for compare in (_of_steps, _of_validations):
        if (found := compare(straight, interrupted)) is not None:
            yield found


def _of_steps(straight: Trace, interrupted: Trace) -> tuple[Place, Difference] | None:
    wanted = {record.position: record for _, record in straight.trained()}
    done: dict[BatchPosition, list[tuple[int, Trained]]] = {}
    for number, record in interrupted.trained():
        done.setdefault(record.position, []).append((number, record))
    for position in sorted(wanted.keys() | done.keys()):
        if position not in wanted or position not in done:
            return (position, OF_BATCH), _of_length(position, wanted.get(position), done.get(position))
        for number, record in done[position]:
            if (found := _of_one_step(wanted[position], record, resumed=number > 0)) is not None:
                return (position, OF_BATCH), found
    return None


def _of_length(position: BatchPosition, wanted: Trained | None, done: list[tuple[int, Trained]] | None) -> Difference:
    known = wanted if wanted is not None else done[0][1] if done else None
    assert known is not None
    straight, interrupted = ("trained" if trained else "not trained" for trained in (wanted is not None, done))
    epoch, batch = position
    return difference(DifferenceKind.STEPS, straight, interrupted, epoch=epoch, batch=batch, step=known.step)


def _of_one_step(wanted: Trained, done: Trained, *, resumed: bool) -> Difference | None:
    pairs: dict[DifferenceKind, tuple[object, object]] = {
        DifferenceKind.SAMPLES: (wanted.samples, done.samples),
        DifferenceKind.DATA: (wanted.data, done.data),
        DifferenceKind.LR: (_listed(wanted.lr), _listed(done.lr)),
        DifferenceKind.LOSS: (wanted.loss, done.loss),
        DifferenceKind.RNG: (wanted.rng, done.rng),
        DifferenceKind.STEPS: (wanted.step, done.step),
    }
    for kind, (one, other) in pairs.items():
        if one != other:
            return difference(kind, str(one), str(other), resumed=resumed, **_place_of(wanted))
    return None


def _of_validations(straight: Trace, interrupted: Trace) -> tuple[Place, Difference] | None:
    wanted = {record.position: record for record in straight.all_of(Validated)}
    done = {record.position: record for record in interrupted.all_of(Validated)}
    for position in sorted(wanted.keys() ^ done.keys()):
        known = wanted.get(position) or done[position]
        there = ["done" if position in each else "not done" for each in (wanted, done)]
        return (position, OF_VALIDATION), difference(DifferenceKind.VALIDATION, *there, **_place_of(known))
    differing = []
    for number, record in interrupted.passes():
        if isinstance(record, Validated):
            one, place = wanted[record.position], _place_of(record) | {"resumed": number > 0}
            if (found := of_parts(DifferenceKind.VALIDATION, one.metrics, record.metrics, **place)) is not None:
                differing.append(((record.position, OF_VALIDATION), found))
    return min(differing, key=lambda item: item[0], default=None)


def _place_of(record: Trained | Validated) -> dict[str, Any]:
    return {"epoch": record.epoch, "batch": record.batch, "step": record.step}


def _listed(rates: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(", ".join(groups) for groups in rates)


# -- ends ------------------------------------------------------------------------------------------------------------


def _of_ends(straight: Trace, interrupted: Trace) -> Difference | None:
    if not straight.ended or not interrupted.ended:
        ends = ["ended" if trace.ended else "not ended" for trace in (straight, interrupted)]
        return difference(DifferenceKind.STEPS, *ends)
    varying = varying_places(straight, interrupted)
    ends_of = [{end.fit: end for end in trace.ended} for trace in (straight, interrupted)]
    for fit in sorted(ends_of[0].keys() ^ ends_of[1].keys()):
        ends = ["ended" if fit in each else "not ended" for each in ends_of]
        return difference(DifferenceKind.STEPS, *ends, name=f"of fit() {fit}")
    for done in interrupted.ended:
        wanted = ends_of[0][done.fit]
        for kind, one, other in (
            (DifferenceKind.WEIGHTS, wanted.weights, done.weights),
            (DifferenceKind.OPTIMIZER, wanted.optimizer, done.optimizer),
            (DifferenceKind.END_RNG, wanted.rng, done.rng),
            (DifferenceKind.METRICS, wanted.metrics or {}, done.metrics or {}),
            (DifferenceKind.STATE, *_steady(wanted, done, varying)),
        ):
            if (found := of_parts(kind, one, other)) is not None:
                return found
    return None


def _steady(wanted: Ended | Left, done: Ended | Left, varying: frozenset[str]) -> tuple[dict[str, str], dict[str, str]]:
    """
    Their places, without those that vary by themselves and those that one of the two could not look into: these are
    named as not compared.
    """
    unread = {*(wanted.unread or ()), *(done.unread or ())}
    one, other = (
        {place: text for place, text in (each.places or {}).items() if family(place) not in varying}
        for each in (wanted, done)
    )
    left_out = {place for place in one.keys() ^ other.keys() if place in unread}
    kept = [{place: text for place, text in each.items() if place not in left_out} for each in (one, other)]
    return kept[0], kept[1]


def family(place: str) -> str:
    """The place without numbers of items: what one item of a list holds, others hold too."""
    return _NUMBER.sub("[]", place)


def varying_places(straight: Trace, interrupted: Trace) -> frozenset[str]:
    """Families of places that differed before anything was interrupted: a time, a name of the process."""
    return _varying({moment: noted.places for moment, noted in straight.noted().items()},
                    {moment: noted.places for moment, noted in interrupted.noted().items()})  # fmt: skip


def varying_files(straight: Trace, interrupted: Trace) -> frozenset[str]:
    """Files that differed, or were there in one of the two only, before anything was interrupted."""
    return _varying({moment: noted.files for moment, noted in straight.noted().items()},
                    {moment: noted.files for moment, noted in interrupted.noted().items()}, named=str)  # fmt: skip


def _varying(
    straight: Mapping[str, Mapping[str, str]], interrupted: Mapping[str, Mapping[str, str]], named: Any = family
) -> frozenset[str]:
    found = set()
    for moment in straight.keys() & interrupted.keys():
        one, other = straight[moment], interrupted[moment]
        found |= {named(name) for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    return frozenset(found)


# -- results ---------------------------------------------------------------------------------------------------------


def _of_results(straight: Trace, interrupted: Trace) -> Difference | None:
    """
    Each process of the interrupted training must have given what the straight one gave, as far as it came; the last
    one all of it. Only the last one was at its end: what another had in its variables is what an error left there.
    """
    given, again = straight.of_each_process(), interrupted.of_each_process()
    wanted = given[-1] if given else ()
    varying = varying_places(straight, interrupted)
    for number, given_now in enumerate(again or [()], 1):
        is_last = number >= len(again)
        done = given_now if is_last else tuple(each for each in given_now if isinstance(each, Evaluated))
        for one, other in zip(wanted, done, strict=False):
            if (found := _of_one_result(one, other, varying)) is not None:
                return found
        if len(done) > len(wanted) or (is_last and len(done) < len(wanted)):
            return difference(DifferenceKind.RESULTS, *(f"{len(each)} results" for each in (wanted, done)))
    return None


def _of_one_result(wanted: Evaluated | Left, done: Evaluated | Left, varying: frozenset[str]) -> Difference | None:
    if isinstance(wanted, Left) and isinstance(done, Left):
        return of_parts(DifferenceKind.STATE, *_steady(wanted, done, varying))
    if isinstance(wanted, Evaluated) and isinstance(done, Evaluated) and wanted.stage == done.stage:
        one, other = (each.metrics | _predicted(each) for each in (wanted, done))
        return of_parts(DifferenceKind.RESULTS, one, other, where=f"{wanted.stage}()")
    return difference(DifferenceKind.RESULTS, _what(wanted), _what(done))


def _predicted(result: Evaluated) -> dict[str, str]:
    return {} if result.predictions is None else {"predictions": result.predictions}


def _what(result: Evaluated | Left) -> str:
    return f"{result.stage}()" if isinstance(result, Evaluated) else "the end of the process"
