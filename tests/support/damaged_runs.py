"""A small run as it lies in a store, with real checkpoints, and everything that can happen to one of its objects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from spotrun.checkpoint import layout
from spotrun.checkpoint.restore import newest_readable
from spotrun.checkpoint.upload import SMALL_BYTES, upload
from spotrun.folder.ledger import FOLDER, Ledger, key_of
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store
from tests.support.checkpoint_entries import committed, content_of
from tests.support.histories import History
from tests.support.manual_clock import ManualClock

HUGE = b"[" * (8 << 20)
COMMITS = 3
Damage = Callable[[bytes], bytes | None]
"""What is there instead; None: nothing."""


class SmallRun:
    """
    Four launches' worth of ledger and three checkpoints of five objects each, in `store`.

    `images` are the bytes of each commit by its number. The run has ended, so its last entry matters.
    """

    def __init__(self, store: Store, seed: int = 1, name: str = "demo") -> None:
        self.store = store
        self._rng = random.Random(seed)
        self.images: dict[int, bytes] = {}
        spec = RunSpec.from_dict({"name": name, "workdir": "/", "train": {"script": "train.py"}})
        self.history = History(spec=spec.to_dict(), name=name)
        self.history.running()
        for step in (10, 20, 30):
            self.history.step = step
            self._commit(step)
        self.history.epoch(0)
        self.history.after(5).completed(final_commit=max(self.images))
        self.history.put_into(store)
        self.objects = {stored.key: store.get(stored.key) for stored in store.list("")}

    @property
    def uid(self) -> str:
        return self.history.uid

    def _commit(self, step: int) -> None:
        history = self.history.after(40)
        prefix = f"checkpoints/{history.attempt}-0-{step}"
        image = self._image(step)
        uploaded = upload(self.store, prefix, memoryview(image), {"step": step})
        entry = committed(history.attempt, prefix, step, history.now, uploaded, stall_s=0.01, durable_s=1)
        self.images[history.write(entry)] = image

    def _image(self, step: int) -> bytes:
        """Large enough for four parts."""
        tensors = layout.place([("uint8", (SMALL_BYTES,))])
        return layout.encode_header(tensors, {"tensor": 0}, {"step": step}) + self._rng.randbytes(SMALL_BYTES)

    def ledger(self) -> Ledger:
        """A newcomer's, that has read nothing yet."""
        return Ledger(self.store, self.uid, "test", ManualClock(self.history.now), retry_for_s=0)

    def restore(self, state: RunState) -> tuple[int, bytes, tuple[int, ...]]:
        """The commit that a trainer would get, its bytes, and what was skipped."""
        found = newest_readable(self.store, state.restore_candidates())
        return found.image.commit.number, content_of(found.image), found.skipped

    def commits_of(self, keys: set[str]) -> set[int]:
        """The commits that these objects belong to."""
        return {
            commit.number
            for commit in self.history.state.commits
            if any(key.startswith(f"{commit.event.prefix}/") for key in keys)
        }


class Case(NamedTuple):
    """One accident: `changes` says for each object what is there afterwards."""

    what: str
    changes: dict[str, bytes | None]

    def happen(self, store: Store) -> None:
        for key, data in self.changes.items():
            if data is None:
                store.delete(key)
            else:
                store.put_status(key, data)

    def undo(self, run: SmallRun) -> None:
        for key in self.changes:
            if key in run.objects:
                run.store.put_status(key, run.objects[key])
            else:
                run.store.delete(key)


def _flipped(place: float, bit: int) -> Damage:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[round(place * (len(data) - 1))] ^= 1 << bit
        return bytes(changed)

    return flip


def _another_digit(data: bytes) -> bytes:
    """The silent one in JSON: a number that is as good as the one before."""
    last = max(data.rfind(b"%d" % digit) for digit in range(10))
    return data[:last] + b"%d" % ((data[last] - ord("0") + 1) % 10) + data[last + 1 :]


PLACES = (0, 0.1, 0.3, 0.5, 0.8, 1)
DAMAGES: dict[str, Damage] = {
    **{
        f"bit {bit} flipped at {place:.0%}": _flipped(place, bit)
        for bit, place in enumerate((0, 0.1, 0.3, 0.5, 0.8, 1))
    },
    "another digit": _another_digit,
    "cut to nothing": lambda data: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "a byte more": lambda data: data + b"\n",
    "doubled": lambda data: data + data,
    "missing": lambda data: None,
    "null": lambda data: b"null",
    "a list": lambda data: b"[]",
    "an empty object": lambda data: b"{}",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: random.Random(len(data)).randbytes(len(data)),
    "huge": lambda data: HUGE,
}


def accidents(run: SmallRun, folder: str) -> Iterator[Case]:
    """Every object below `folder` with every damage, and each exchanged with the next of its kind."""
    keys = [key for key in run.objects if key.startswith(folder)]
    for key in keys:
        for what, damage in DAMAGES.items():
            yield Case(f"{key}: {what}", {key: damage(run.objects[key])})
    for key, other in zip(keys, [*keys[1:], keys[0]], strict=True):
        if key.endswith(".json") == other.endswith(".json"):
            yield Case(f"{key}: exchanged with {other}", {key: run.objects[other], other: run.objects[key]})
    manifests = [key for key in keys if key.endswith("manifest.json")]
    for key in manifests:
        other = manifests[manifests.index(key) - 1]
        yield Case(f"{key}: exchanged with {other}", {key: run.objects[other], other: run.objects[key]})


def ledger_accidents(run: SmallRun) -> Iterator[Case]:
    yield from accidents(run, FOLDER)
    end = run.history.state.next_number
    for number in range(end):
        yield Case(f"{key_of(number)}: once more at the end", {key_of(end): run.objects[key_of(number)]})
