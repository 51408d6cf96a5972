"""The setup cache of a run as its training could exchange it: only what the ledger vouches for leaves the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.folder import setup_cache
from spotrun.run import events as ev
from spotrun.run.events import Cause, PackDigest, SetUp
from tests.support.gang_history import GangHistory
from tests.support.histories import History, refused
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

KEY = "a" * 64
PACK, FORGED = PackDigest(KEY, "1" * 64), PackDigest(KEY, "2" * 64)


def made(pack: PackDigest, how: str = "run") -> SetUp:
    return SetUp(seconds=9.0, how=how, packed_bytes=5, pack=pack)


# -- in the ledger -----------------------------------------------------------------------------------------------------


def test_ledger_vouches_for_what_the_first_attempt_had_set_up_and_for_nothing_later() -> None:
    history = History()
    assert history.state.vouched_packs == ()
    history.running(setup=made(PACK))
    history.ended(Cause.USER_ERROR)
    history.running(setup=made(FORGED))
    assert history.state.vouched_packs == (PACK,)


def test_setup_that_failed_in_the_first_attempt_is_vouched_for_by_no_later_entry() -> None:
    history = History()
    history.running(setup=None)
    history.ended(Cause.USER_ERROR)
    history.running(setup=made(FORGED))
    assert history.state.vouched_packs == ()


def test_void_entry_before_the_first_attempt_vouches_for_nothing() -> None:
    history = History()
    early = ev.AttemptStarted(launch=1, instance_id="i-1", booted_at=history.now, setup=made(FORGED))
    refused(history, early, "there is no launch 1")
    history.running(setup=made(PACK))
    assert history.state.vouched_packs == (PACK,)


def test_ledger_vouches_for_the_members_of_the_first_gang_and_for_none_that_came_later() -> None:
    history, other = GangHistory(2), PackDigest(KEY, "3" * 64)
    first, second = history.ask(2)
    history.exist(first, second)
    history.ready(first, setup=made(PACK))
    history.ready(second, setup=made(other))
    history.start_gang([first, second])
    history.lost(second)
    (late,) = history.ask(1, for_gang=history.state.attempts.values()[-1].number)
    history.exist(late)
    history.ready(first, setup=made(FORGED))
    history.ready(late, setup=made(FORGED))
    assert history.state.voids == []
    assert history.state.vouched_packs == (PACK, other)


def test_entry_0_vouches_for_what_a_sweep_copies() -> None:
    history = History(setup_packs=(PACK,))
    assert history.state.vouched_packs == (PACK,)


# -- in the store ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "setup.tar"
    path.write_bytes(b"what setup made")
    return path


def packed(store: MemoryStore, archive: Path, launch: int = 7) -> PackDigest:
    described = setup_cache.describe(launch, archive)
    assert setup_cache.upload(store, KEY, described, archive)
    return described.digest(KEY)


def test_vouched_pack_is_copied_whole_and_once(store: MemoryStore, archive: Path) -> None:
    pack, target = packed(store, archive), MemoryStore(ManualClock())
    assert setup_cache.copy(store, target, [pack]) == 1
    found = setup_cache.find(target, KEY)
    assert found is not None
    setup_cache.fetch(target, KEY, found, archive.with_name("copied.tar"))
    assert archive.with_name("copied.tar").read_bytes() == b"what setup made"
    assert setup_cache.copy(store, target, [pack]) == 0
    store.delete(f"environments/{KEY}/7/000000")
    assert setup_cache.copy(store, MemoryStore(ManualClock()), [pack]) == 0, "a part of it is missing"


def test_pack_that_the_training_has_exchanged_is_not_copied(store: MemoryStore, archive: Path) -> None:
    pack, target = packed(store, archive), MemoryStore(ManualClock())
    setup_cache.discard(store, KEY)
    archive.write_bytes(b"what the training made")
    packed(store, archive)
    assert setup_cache.copy(store, target, [pack]) == 0
    store.put(f"environments/{KEY}.json", b" " * (2 * setup_cache.DESCRIPTION_MAX_BYTES) + b"{")
    assert setup_cache.copy(store, target, [pack]) == 0
    assert list(target.list("")) == []


@pytest.mark.parametrize("evil", [b"what evil made!", b"what setup made" + bytes(10**6), b""])
def test_part_that_the_training_has_exchanged_is_copied_and_then_refused(
    store: MemoryStore, archive: Path, evil: bytes
) -> None:
    pack, target = packed(store, archive), MemoryStore(ManualClock())
    store.put(f"environments/{KEY}/7/000000", evil)
    assert setup_cache.copy(store, target, [pack]) == 1
    found = setup_cache.find(target, KEY)
    assert found is not None
    with pytest.raises(setup_cache.SetupUnusable, match="is damaged"):
        setup_cache.fetch(target, KEY, found, archive)


def test_digest_of_a_pack_covers_its_key_its_launch_and_its_parts(archive: Path) -> None:
    described = setup_cache.describe(7, archive)
    other = replace(described, parts=(*described.parts, *described.parts))
    digests = [described.digest(KEY), described.digest("b" * 64), other.digest(KEY)]
    assert len({*digests, replace(described, launch=8).digest(KEY)}) == 4


def test_archive_that_changes_after_it_was_described_is_stored_and_then_refused(
    store: MemoryStore, archive: Path
) -> None:
    described = setup_cache.describe(7, archive)
    archive.write_bytes(b"what evil made!")
    setup_cache.upload(store, KEY, described, archive)
    with pytest.raises(setup_cache.SetupUnusable, match="is damaged"):
        setup_cache.fetch(store, KEY, described, archive)
