"""A tensor that does not change is sent once in an attempt, and no checkpoint is the worse for it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyrsistent import pvector

from spotrun.checkpoint import layout, retention, unchanged, upload
from spotrun.checkpoint.manifest import Extent, Manifest, Part, manifest_key
from spotrun.checkpoint.restore import Image, fetch, newest_readable, recognised, verify
from spotrun.checkpoint.unchanged import FRUITLESS_MAX, Unchanged
from spotrun.errors import CheckpointDamaged
from spotrun.run import events as ev
from spotrun.run import fold
from spotrun.run.state import Commit, RunState
from spotrun.spec.model import CheckpointSpec, KeepBestSpec
from tests.support.checkpoint_entries import committed, restored
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

MB = 1 << 20
MANIFEST_MAX_BYTES = 256_000


def image_of(tensors: Sequence[bytes], meta: str = "") -> bytes:
    """An image as a trainer writes one; between its tensors lies what an arena held before."""
    places = layout.place([("uint8", (len(tensor),)) for tensor in tensors])
    image = bytearray(layout.encode_header(places, [{"tensor": n} for n in range(len(tensors))], {"meta": meta}))
    start = len(image)
    for place, tensor in zip(places, tensors, strict=True):
        image += random.randbytes(start + place.offset - len(image))
        image += tensor
    return bytes(image)


def tensors_of(image: bytes) -> list[bytes]:
    header = layout.decode_header(image)
    starts = [header.data_start + tensor.offset for tensor in header.tensors]
    return [image[start : start + t.size_bytes] for start, t in zip(starts, header.tensors, strict=True)]


class Attempt:
    """What an agent sends, commit after commit, without an agent."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.unchanged = Unchanged()
        self.commits: list[Commit] = []
        self.sent: list[int] = []

    def commit(self, image: bytes) -> Commit:
        number = len(self.commits)
        prefix, view = f"checkpoints/1-0-{number}", memoryview(image)
        borrowed = self.unchanged.in_store(view, layout.decode_header(view), {c.event.prefix for c in self.commits})
        before = sum(map(len, self.store.objects.values()))
        uploaded = upload.upload(self.store, prefix, view, {}, borrowed=borrowed)
        self.sent.append(sum(map(len, self.store.objects.values())) - before)
        assert uploaded.sent_bytes == self.sent[-1]
        self.unchanged.committed(prefix, uploaded.manifest)
        event = committed(1, prefix, number, datetime.now(UTC), uploaded)
        self.commits.append(Commit(number=number, at=event.taken_at, event=event))
        return self.commits[-1]

    def restored(self, commit: Commit) -> bytes:
        verify(self.store, commit)
        whole, in_pieces = (restored(store, commit) for store in (self.store, _InPieces(self.store)))
        assert whole == in_pieces
        return whole


class _InPieces(MemoryStore):
    """The same objects, of which no piece ends where anything else does."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.objects = store.objects

    def pieces(self, key: str, size_bytes: int) -> Iterator[bytes]:
        whole = self.get(key, 0, size_bytes)
        yield from (whole[start : start + 99_991] for start in range(0, len(whole), 99_991))


@pytest.mark.exhaustive
@pytest.mark.parametrize("layers", [1, 24])
def test_adapters_of_a_frozen_backbone_are_all_that_is_sent(layers: int) -> None:
    rng = random.Random(1)
    backbone = [rng.randbytes(24 * MB // layers + 4 * layer + 1) for layer in range(layers)]
    attempt = Attempt()
    for step in (9, 10, 1000):
        adapters = [rng.randbytes(40_000) for _ in backbone]
        pairs = [tensor for pair in zip(backbone, adapters, strict=True) for tensor in pair]
        commit = attempt.commit(image_of(pairs, "x" * step))
        assert tensors_of(attempt.restored(commit)) == pairs
    changed = layers * 40_000
    assert attempt.sent[0] > 24 * MB
    assert max(attempt.sent[1:]) <= 1.1 * changed + MANIFEST_MAX_BYTES


@pytest.mark.parametrize("where", [None, 0, MB, -1], ids=["untouched", "header", "backbone", "adapter"])
def test_an_arena_with_a_commit_that_borrows_is_recognised_by_every_byte(where: int | None) -> None:
    """So a trainer that is started again downloads nothing (test_agent.py has the same with processes)."""
    attempt, backbone = Attempt(), random.randbytes(4 * MB)
    attempt.commit(image_of([backbone, random.randbytes(999)]))
    image = bytearray(image_of([backbone, random.randbytes(999)]))
    commit, digest = attempt.commit(bytes(image)), unchanged.digest(memoryview(image))
    assert commit.event.borrows
    if where is not None:
        image[where] ^= 1
    fd = os.memfd_create("arena")
    os.write(fd, bytes(image) + b"what an arena has beyond its image")
    found = recognised(attempt.store, Image(commit, os.dup(fd)), digest)
    assert (found is not None) is (where is None)
    assert recognised(attempt.store, Image(commit, fd), None) is None, "nobody knows what it was"
    if found is not None:
        found.close()


def test_fully_trained_model_is_sent_whole_and_soon_not_compared() -> None:
    rng, attempt = random.Random(2), Attempt()
    frozen = rng.randbytes(MB // 5)
    for _ in range(FRUITLESS_MAX + 2):
        assert attempt.commit(image_of([frozen, rng.randbytes(MB)])).event.borrows == ()
    assert attempt.commit(image_of([frozen])).event.borrows == ()


def test_backbone_trained_in_between_is_sent_again_and_borrowed_from_then_on() -> None:
    rng, attempt = random.Random(3), Attempt()
    first, second = rng.randbytes(MB), rng.randbytes(MB)
    borrows = [attempt.commit(image_of([rng.randbytes(99), body])).event.borrows for body in [first] * 2 + [second] * 2]
    assert borrows == [(), ("checkpoints/1-0-0",), (), ("checkpoints/1-0-2",)]


def test_retired_checkpoint_lends_nothing() -> None:
    attempt = Attempt()
    image = memoryview(image_of([random.randbytes(MB)]))
    attempt.commit(bytes(image))
    assert attempt.unchanged.in_store(image, layout.decode_header(image), {"checkpoints/1-0-0"}).parts
    assert not attempt.unchanged.in_store(image, layout.decode_header(image), ()).parts


@pytest.mark.exhaustive
@pytest.mark.parametrize("attempts", [40, pytest.param(150, marks=pytest.mark.nightly)])
def test_every_checkpoint_comes_back_whatever_changed_moved_grew_or_is_there_twice(attempts: int) -> None:
    settings(max_examples=attempts)(given(data=st.data())(every_checkpoint_comes_back))()


def every_checkpoint_comes_back(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:  # many parts of a small image
        patch.setattr(upload, "PART_MAX_BYTES", data.draw(st.sampled_from([64, 1024, 16 * MB])))
        patch.setattr(upload, "SMALL_BYTES", 512)
        pool = [random.Random(n).randbytes(data.draw(st.integers(0, 700))) for n in range(6)]
        attempt = Attempt()
        for _ in range(data.draw(st.integers(2, 5))):
            tensors = data.draw(st.lists(st.sampled_from(pool), max_size=12))
            changed = [t if data.draw(st.booleans()) else random.randbytes(len(t)) for t in tensors]
            commit = attempt.commit(image_of(changed, "m" * data.draw(st.integers(0, 200))))
            assert tensors_of(attempt.restored(commit)) == changed


# -- who may go ------------------------------------------------------------------------------------------------------


def state_of(*borrows: int | None, suspect: Sequence[int] = (), cut_off: Sequence[int] = ()) -> RunState:
    """Commits numbered from 0, each of which has borrowed of another or of none."""
    commits = []
    for number, lender in enumerate(borrows):
        needs = () if lender is None else (f"checkpoints/1-0-{lender}",)
        facts = {"borrows": needs, "suspect": number in suspect, "metrics": {"loss": float(number)}}
        event = committed(1, f"checkpoints/1-0-{number}", number, datetime.now(UTC), **facts)
        commits.append(Commit(number=number, at=event.taken_at, event=event, cut_off=number in cut_off))
    return replace(History().state, commits=pvector(commits))


@pytest.mark.parametrize(
    ("state", "retired"),
    [
        (state_of(None, 0, 0, 0), [1]),
        (state_of(None, 0, None, 2, 2), [1, 0]),
        (state_of(None, 0, None, None), [1, 0]),
        (state_of(None, None, 0, 0, suspect=[3]), []),
        (state_of(None, 0, None, None, 0, cut_off=[4]), [1]),
    ],
    ids=["needed", "moved on", "free", "needed by a suspect one", "needed by one that was cut off"],
)
def test_lending_checkpoint_stays_while_it_is_needed_and_goes_last(state: RunState, retired: list[int]) -> None:
    assert retention.to_retire(state, CheckpointSpec(keep_last=2), None) == retired


def test_the_best_is_held_together_with_what_it_needs() -> None:
    best = CheckpointSpec(keep_last=1, keep_best=KeepBestSpec(metric="loss", mode="min", count=1))
    state = state_of(None, None, None)
    held = msgspec.structs.replace(state.commits[0].event, borrows=("checkpoints/1-0-1",))
    first = msgspec.structs.replace(state.commits[0], event=held)
    state = msgspec.structs.replace(state, commits=state.commits.set(0, first))
    assert retention.to_retire(state, best, None) == []


def lending() -> tuple[History, int, int]:
    history = History()
    history.running()
    lender = history.commit()
    commit = history.state.commit(lender)
    assert commit is not None
    borrower = history.after(60).write(borrowing(history, commit.event.prefix))
    return history, lender, borrower


def borrowing(history: History, prefix: str) -> ev.CheckpointCommitted:
    own = f"checkpoints/{history.state.next_number}"
    return committed(history.attempt, own, 9, history.now, borrows=(prefix,))


def test_an_entry_that_retires_what_another_needs_is_void() -> None:
    history, lender, borrower = lending()
    too_soon = history.entry(ev.CheckpointRetired(attempt=history.attempt, commit=lender))
    assert fold.refusal(history.state, too_soon) == "another checkpoint borrows from it"
    history.write(ev.CheckpointRetired(attempt=history.attempt, commit=borrower))
    history.write(ev.CheckpointRetired(attempt=history.attempt, commit=lender))
    assert not any(commit.usable for commit in history.state.commits)


def test_a_commit_that_borrows_of_what_may_be_gone_is_void() -> None:
    history, lender, borrower = lending()
    prefix = history.state.commits[0].event.prefix
    history.write(ev.CheckpointRetired(attempt=history.attempt, commit=borrower))
    history.write(ev.CheckpointRetired(attempt=history.attempt, commit=lender))
    too_late = history.entry(borrowing(history, prefix))
    assert fold.refusal(history.state, too_late) == "the checkpoint borrows from one that may be gone"


# -- damage ----------------------------------------------------------------------------------------------------------


def three_commits() -> Attempt:
    """The second borrows of the first; the third is whole."""
    attempt, rng = Attempt(), random.Random(4)
    body = rng.randbytes(MB)
    for tensors in ([body, b"1"], [body, b"2"], [rng.randbytes(MB)]):
        attempt.commit(image_of(tensors))
    return attempt


def test_damage_of_a_borrowed_part_affects_exactly_its_borrowers() -> None:
    attempt = three_commits()
    key = "checkpoints/1-0-0/part-0000"
    attempt.store.objects[key] = attempt.store.objects[key][:-1] + b"?"
    candidates = list(reversed(attempt.commits))
    assert newest_readable(attempt.store, candidates).image.commit.number == 2
    with pytest.raises(CheckpointDamaged, match="none of 2 checkpoints"):
        newest_readable(attempt.store, candidates[1:])


Spoil = Callable[[Manifest], Manifest]


def extents(*found: Extent) -> Spoil:
    return lambda manifest: msgspec.structs.replace(manifest, extents=found)


def part(**fields: object) -> Spoil:
    def spoil(manifest: Manifest) -> Manifest:
        borrowed, *own = manifest.parts
        return msgspec.structs.replace(manifest, parts=(msgspec.structs.replace(borrowed, **fields), *own))

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        part(of="checkpoints/1-0-2"),
        part(of="ledger"),
        part(of="../other-run/checkpoints/1-0-0"),
        part(name="../../ledger/00000000.json"),
        part(size_bytes=-1),
        extents(Extent(0, 0, 0, 10)),
        extents(Extent(9, 0, 0, 10)),
        extents(Extent(-1, 0, 0, 10)),
        extents(Extent(0, -1, 0, 10)),
        extents(Extent(0, 0, 0, 1 << 60)),
        extents(Extent(0, 0, 0, -5)),
        lambda manifest: msgspec.structs.replace(manifest, extents=(*manifest.extents, manifest.extents[0])),
        lambda manifest: msgspec.structs.replace(manifest, extents=manifest.extents[1:]),
        lambda manifest: msgspec.structs.replace(manifest, size_bytes=manifest.size_bytes + 1),
        lambda manifest: msgspec.structs.replace(manifest, parts=()),
        lambda manifest: msgspec.structs.replace(
            manifest, parts=(Part(name="part-0000", size_bytes=1, blake3="0" * 64), *manifest.parts[1:])
        ),
    ],
)
def test_a_manifest_that_would_give_another_image_is_refused(spoil: Spoil) -> None:
    attempt = three_commits()
    commit = attempt.commits[1]
    key = manifest_key(commit.event.prefix)
    data = msgspec.json.encode(spoil(msgspec.json.decode(attempt.store.objects[key], type=Manifest)))
    attempt.store.objects[key] = data
    event = msgspec.structs.replace(commit.event, manifest_blake3=blake3(data).hexdigest())
    with pytest.raises(CheckpointDamaged):
        fetch(attempt.store, msgspec.structs.replace(commit, event=event))
