"""
Tests whether a store's put-if-absent is atomic: several writers try to create the same object at the same time, and
only one may succeed. The documentation of stores is not reliable on this point.

The ledger relies on put-if-absent, because two programs may try to write an entry under the same number at the same
time. If the store confirmed both writes, both programs would act on their own entry, and both would spend money.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from spotrun.errors import StoreError, StoreUnavailable, WritesRefused
from spotrun.store.port import Store
from spotrun.store.retrying import persist

RACERS = 16
START_WITHIN_S = 30.0


def race(store: Store, key: str, racers: int = RACERS) -> None:
    """
    Make `racers` writers try to create the object `key` at the same time, and check that exactly one succeeds. The
    object is not deleted afterwards.

    Raises:
        StoreUnavailable: no writer got an answer, or the store refuses writes.
        StoreError: the store confirmed the creation to two writers, or the stored bytes are not the winner's.
    """
    answers = _answers(store, key, racers)
    unanswered = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    if len(unanswered) == racers:
        why, advice = unanswered[0].message, unanswered[0].hint or "try again, or run `spotrun doctor`"
        raise StoreUnavailable(
            f"none of {racers} simultaneous writers got an answer from {store.uri}: {why}", hint=advice
        ) from unanswered[0]
    won = [number for number, answer in enumerate(answers) if answer is True]
    if len(won) > 1:
        raise _unsafe(f"the store told {len(won)} of {racers} writers that they created the same object")
    stored = int(persist(lambda: store.get(key)))
    if won and won != [stored]:
        raise _unsafe(f"the store told writer {won[0]} that it created an object, but the object is writer {stored}'s")
    if answers[stored] is False:
        raise _unsafe("the store told a writer that the object already exists, yet let it overwrite the object")
    if persist(lambda: store.put_if_absent(key, b"-1")) or persist(lambda: store.get(key)) == b"-1":
        raise _unsafe("an existing object was overwritten")


def _answers(store: Store, key: str, racers: int) -> list[bool | StoreUnavailable]:
    """
    Return the store's answer to each writer. If the answer is a StoreUnavailable, it is unknown whether the writer
    created the object.
    """
    start = Barrier(racers, timeout=START_WITHIN_S)

    def create(number: int) -> bool | StoreUnavailable:
        start.wait()
        try:
            return store.put_if_absent(key, b"%d" % number)
        except WritesRefused:
            raise  # the store refuses all writes
        except StoreUnavailable as error:
            return error

    with ThreadPoolExecutor(racers, thread_name_prefix="race") as pool:
        return list(pool.map(create, range(racers)))


def _unsafe(what: str) -> StoreError:
    return StoreError(
        f"this store cannot hold a ledger: {what}",
        hint="use a store that supports If-None-Match on PUT: a local disk, S3, GCS, SeaweedFS from 4.17",
    )
