"""
Damage to what is stored: a resume gets the very bytes that were committed, or the run stops with a reason.

Never step zero without a word, never a traceback, never other bytes (promise I4); and nobody writes on to a ledger of
which a part is gone or changed (protocol 4).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun import errors
from spotrun.errors import CheckpointDamaged, LedgerDamaged, RunGone, SpotrunError, StoreError
from spotrun.folder import keys
from spotrun.folder.keys import KeyMissing, OwnersKey
from spotrun.folder.ledger import Ledger, key_of
from spotrun.run.fold import fold
from spotrun.runner.runner import Runner
from spotrun.store.local import LocalStore
from spotrun.store.port import Store
from tests.support.called_spotrun import Spotrun
from tests.support.damaged_runs import COMMITS, Case, SmallRun, accidents, ledger_accidents
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.memory_store import MemoryStore
from tests.support.played_run import PlayedRun
from tests.support.repository import ROOT
from tests.support.stored_runs import new_run

ACCIDENTS_MIN = 400


@pytest.fixture(scope="module", params=["local folder", "memory"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    local = request.param == "local folder"
    return SmallRun(LocalStore(tmp_path_factory.mktemp("run")) if local else MemoryStore())


EACH_OR_SOME = pytest.mark.parametrize(
    ("run", "every"),
    [("memory", 1), ("local folder", 7), pytest.param("local folder", 1, marks=pytest.mark.nightly)],
    indirect=["run"],
)
"""All accidents, or one of `every` so many: 7 has no factor in common with the number of damages."""


def after(case: Case, run: SmallRun, check: Callable[[Case], None]) -> None:
    case.happen(run.store)
    try:
        check(case)
    except AssertionError as error:
        raise AssertionError(f"{case.what}: {error}") from error
    finally:
        case.undo(run)


def test_without_an_accident_the_newest_checkpoint_is_restored(run: SmallRun) -> None:
    newest = max(run.images)
    assert run.restore(run.ledger().refresh()) == (newest, run.images[newest], ())


@pytest.mark.exhaustive
@EACH_OR_SOME
def test_after_any_accident_to_a_checkpoint_the_newest_whole_one_is_restored(run: SmallRun, every: int) -> None:
    state = run.ledger().refresh()

    def check(case: Case) -> None:
        hurt = run.commits_of(set(case.changes))
        expected = max(run.images.keys() - hurt)
        number, image, skipped = run.restore(state)
        assert number == expected
        assert image == run.images[expected], "other bytes than were committed"
        assert set(skipped) == {commit for commit in hurt if commit > expected}

    cases = list(accidents(run, "checkpoints/"))
    for case in cases[::every]:
        after(case, run, check)
    assert len(cases) + len(list(ledger_accidents(run))) >= ACCIDENTS_MIN
    assert len(run.images) == COMMITS


def test_run_without_a_whole_checkpoint_does_not_begin_at_zero(run: SmallRun) -> None:
    state = run.ledger().refresh()
    prefixes = [commit.event.prefix for commit in state.commits]
    case = Case("one part of each", {f"{prefix}/part-0002": b"" for prefix in prefixes})

    def check(case: Case) -> None:
        with pytest.raises(CheckpointDamaged, match="none of 3 checkpoints") as damaged:
            run.restore(state)
        assert all(key in damaged.value.message for key in case.changes), "each is named"
        assert "verify" in (damaged.value.hint or "")

    after(case, run, check)


@pytest.mark.exhaustive
@EACH_OR_SOME
def test_damaged_ledger_stops_readers_and_writers(run: SmallRun, every: int) -> None:
    def check(case: Case) -> None:
        before = [stored.key for stored in run.store.list("")]
        for act in (Ledger.refresh, lambda ledger: ledger.append(lambda _: None)):
            with pytest.raises(LedgerDamaged, match="entry") as damaged:
                act(run.ledger())
            assert "restore the entry" in (damaged.value.hint or "")
        assert [stored.key for stored in run.store.list("")] == before

    end_lost = f"{key_of(run.history.state.next_number - 1)}: missing"
    for case in [*ledger_accidents(run)][::every]:
        if case.what != end_lost:
            after(case, run, check)


def test_an_entry_lost_from_the_end_cannot_be_told_from_one_that_never_was(run: SmallRun) -> None:
    """The one accident that needs a witness: who has read the entry goes on with it, who comes new does without."""
    witness = run.ledger()
    whole = witness.refresh()
    last = key_of(whole.next_number - 1)

    def check(_: Case) -> None:
        assert run.ledger().refresh() == fold(run.history.entries[:-1])
        assert witness.refresh() == whole

    after(Case("the end is lost", {last: None}), run, check)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_runner_that_read_a_now_missing_entry_rents_nothing(number: int) -> None:
    played = PlayedRun()
    runner = played.runner()
    while played.training_on() is None:
        played.turn()
        runner.tick()
    lost = played.store.get(key_of(number))
    played.store.delete(key_of(number))
    (alive,) = played.cloud.alive
    played.cloud.terminate(alive.instance_id)
    with pytest.raises(LedgerDamaged, match=f"entry {number} was read, and is missing now"):
        played.settle(runner, 10)
    played.store.put(key_of(number), lost + b" ")
    with pytest.raises(LedgerDamaged, match=f"the size of entry {number} has changed since it was read"):
        played.settle(runner, 10)
    assert played.cloud.alive == []
    assert len(played.cloud.launches) == 1


@pytest.fixture
def signed() -> PlayedRun:
    """It trains, and its key lies beside it in the store of runs."""
    runs, uid = MemoryStore(), "0123456789"
    played = PlayedRun(uid=uid, public_key=keys.make(runs, uid))
    played.beside = runs
    return played


def runner_of(signed: PlayedRun) -> Runner:
    sign = OwnersKey(lambda: signed.beside, signed.uid, signed.state.created.public_key)
    ledger = Ledger(signed.store, signed.uid, "runner", signed.clock, 0, sign=sign)
    return Runner(ledger, signed.store, signed.cloud, signed.clock, spec(), "runs/n-0123456789")


def train(signed: PlayedRun, runner: Runner) -> str:
    while signed.training_on() is None:
        signed.turn()
        runner.tick()
    return signed.cloud.alive[0].instance_id


def test_runner_rents_nothing_without_the_key_of_the_run(signed: PlayedRun) -> None:
    runner = runner_of(signed)
    alive = train(signed, runner)
    keys.remove(signed.beside, signed.uid)
    signed.cloud.terminate(alive)
    with pytest.raises(KeyMissing):
        signed.settle(runner, 10)
    assert len(signed.cloud.launches) == 1


def test_before_an_instance_is_rented_the_ledger_is_listed_once(
    signed: PlayedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    list_it = signed.store.list
    monkeypatch.setattr(signed.store, "list", lambda prefix, after="": listed.append(prefix) or list_it(prefix, after))
    runner = runner_of(signed)
    runner._ledger.refresh()
    listed.clear()
    runner.tick()
    assert signed.state.launches.keys() == {1}
    assert listed.count("ledger/") == 1


@pytest.mark.parametrize("moved", [True, False])
def test_a_runner_whose_run_was_moved_or_deleted_ends_its_instances_and_says_so(signed: PlayedRun, moved: bool) -> None:
    runner = runner_of(signed)
    alive = train(signed, runner)
    other = signed.cloud.launch(replace(signed.cloud.launches[0], token="ffffffffff-1", run_uid="ffffffffff"))
    erase(signed.store)
    if moved:  # an agent that does not know it writes on where the folder was
        signed.store.put(key_of(40), b"an entry")
    with pytest.raises(RunGone, match=f"n-0123456789 was moved or deleted.*; asked to end {alive}\n"):
        attend(signed, runner)
    assert [each.instance_id for each in signed.cloud.alive] == [other.instance_id]
    assert not [key for key in signed.store.objects if key != key_of(40)], "nothing is written where it was"


def test_before_it_rents_a_runner_notices_that_its_run_is_gone(signed: PlayedRun) -> None:
    runner = runner_of(signed)
    signed.cloud.terminate(train(signed, runner))
    erase(signed.store)
    with pytest.raises(RunGone, match="lists no running instance"):
        signed.settle(runner, 10)
    assert len(signed.cloud.launches) == 1


def test_an_instance_lives_on_while_the_store_is_away(signed: PlayedRun) -> None:
    """A disk that is not mounted is an empty folder: the key is away too. A store that fails lists nothing."""
    runner = runner_of(signed)
    alive = train(signed, runner)
    kept = [(store, erase(store)) for store in (signed.store, signed.beside)]
    attend(signed, runner)
    assert [each.instance_id for each in signed.cloud.alive] == [alive]
    for store, objects in kept:
        for key, data in objects.items():
            store.put(key, data)
    attend(signed, runner)
    assert [each.instance_id for each in signed.cloud.alive] == [alive]


def erase(store: Store) -> dict[str, bytes]:
    """Returns what was there."""
    objects = {each.key: store.get(each.key) for each in store.list("")}
    for key in objects:
        store.delete(key)
    return objects


def attend(signed: PlayedRun, runner: Runner) -> None:
    """For a minute, in which no agent says anything."""
    for _ in range(6):
        signed.clock.advance(10)
        runner.tick()


def test_one_bad_answer_is_forgiven_and_two_are_damage(run: SmallRun) -> None:
    lies = iter([b"\0" * 100])

    class Liar(MemoryStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
            return next(lies, None) or super().get(key, start, size)

    line = Liar()
    line.objects = dict(run.objects)
    assert Ledger(line, run.uid, "test", run.ledger()._clock).refresh() == run.history.state
    lies = iter([b"\0" * 100] * 1000)
    with pytest.raises(LedgerDamaged):
        Ledger(line, run.uid, "test", run.ledger()._clock).refresh()


def test_an_entry_of_another_run_is_void_and_named(run: SmallRun) -> None:
    other = History(uid="ffffffffff")
    other.running()
    from spotrun.run.entry_bytes import encode_entry

    def check(_: Case) -> None:
        state = run.ledger().refresh()
        assert state.voids[0].number == 2
        assert "another run" in state.voids[0].reason

    after(Case("another run's", {key_of(2): encode_entry(other.entries[2])}), run, check)


def test_each_kind_of_damage_has_an_exit_code_of_its_own_that_the_pages_tell() -> None:
    kinds = [errors.SpotrunError, *_below(errors.SpotrunError)]
    codes = {kind.__name__: kind.exit_code for kind in kinds}
    of_ledger = {kind.__name__ for kind in (LedgerDamaged, *_below(LedgerDamaged))}
    assert codes["LedgerDamaged"] not in {code for name, code in codes.items() if name not in of_ledger}
    assert codes["CheckpointDamaged"] not in {code for name, code in codes.items() if name != "CheckpointDamaged"}
    (told,) = [page.read_text() for page in (ROOT / "docs").glob("*.md") if "\n| code | meaning |" in page.read_text()]
    table = told.split("## Exit codes")[1].split("\n## ")[0]
    assert all(f"| {code} |" in table for code in set(codes.values()))


def _below(kind: type[SpotrunError]) -> list[type[SpotrunError]]:
    return [found for child in kind.__subclasses__() for found in (child, *_below(child))]


# -- at the door -----------------------------------------------------------------------------------------------------

LEDGER, CHECKPOINT = LedgerDamaged.exit_code, CheckpointDamaged.exit_code
LEDGER_VERBS = ("status", "events demo", "report demo", "checkpoints ls demo", "checkpoints verify demo", "doctor",
                "stop demo", "resume demo", "tick demo", "logs demo", "down demo -y")  # fmt: skip
AT_THE_DOOR = {
    "a bit of the first entry": (0, lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
    "a bit of a later entry": (4, lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
    "noise for the last entry": (-1, lambda data: b"\xff" * 100),
    "no first entry": (0, lambda data: None),
    "no third entry": (2, lambda data: None),
}


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path / "runs"))
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    return SmallRun(LocalStore(tmp_path / "runs" / "demo-0123456789"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("verb", "what"),
    [  # in `make test` each verb meets two of the damages, and each damage meets four verbs or five
        pytest.param(verb, what, id=f"{verb}-{what}", marks=[pytest.mark.nightly] * ((at + number) % 5 not in (0, 2)))
        for at, verb in enumerate(LEDGER_VERBS)
        for number, what in enumerate(AT_THE_DOOR)
    ],
)
def test_a_damaged_ledger_is_one_letter_at_the_door(verb: str, what: str, stored: SmallRun, spotrun: Spotrun) -> None:
    number, damage = AT_THE_DOOR[what]
    number %= stored.history.state.next_number
    Case(what, {key_of(number): damage(stored.objects[key_of(number)])}).happen(stored.store)
    code, output, letter = spotrun(*verb.split())
    assert code == LEDGER, (output, letter)
    assert letter.count("error: ") == 1
    assert f"entry {number} " in output + letter
    assert "restore the entry" in output + letter


def test_down_says_what_it_has_ended_of_a_damaged_run(stored: SmallRun, spotrun: Spotrun) -> None:
    stored.store.delete(key_of(2))
    code, output, letter = spotrun("down", stored.history.uid, "-y")
    assert code == LEDGER, (output, letter)
    assert output == "the cloud lists no running instance of the run\n"


@pytest.mark.parametrize("name", ["part-0001", "manifest.json"])
def test_a_damaged_checkpoint_is_named_by_verify_and_does_not_trouble_the_others(
    name: str, stored: SmallRun, spotrun: Spotrun
) -> None:
    assert spotrun("checkpoints", "verify", "demo").code == 0
    newest = stored.history.state.commits[-1]
    Case("cut", {f"{newest.event.prefix}/{name}": b"cut"}).happen(stored.store)
    code, output, letter = spotrun("checkpoints", "verify", "demo")
    assert code == CHECKPOINT
    assert output.count("DAMAGED") == 1
    assert name in output
    assert output.count("whole") == COMMITS - 1
    assert "a resume continues from the newest checkpoint that is intact" in letter
    for verb in ("status", "events demo", "report demo", "checkpoints ls demo"):
        assert spotrun(*verb.split()).code == 0


def test_void_entry_is_shown_and_stops_no_reader(stored: SmallRun, spotrun: Spotrun) -> None:
    from spotrun.run.entry_bytes import seal

    end = stored.history.state.next_number
    stored.store.put_if_absent(key_of(end), seal(b'{"number":%d}' % end))
    code, output, _ = spotrun("events", "demo")
    assert code == 0
    assert f"{end}  ?   VOID" in output


def test_one_damaged_run_does_not_hide_the_others(stored: SmallRun, tmp_path: Path, spotrun: Spotrun) -> None:
    SmallRun(LocalStore(tmp_path / "runs" / "other-0123456789"), name="other")
    stored.store.delete(key_of(0))
    code, output, letter = spotrun("status")
    assert code == LEDGER
    assert "completed" in output
    assert "damaged" in output
    assert "demo-0123456789" in letter
    assert spotrun("status", "other").code == 0, "of one run, another's damage says nothing"
    for verb in ("stop other", "down other -y"):
        assert spotrun(*verb.split()).code == 0


@pytest.mark.parametrize("number", [0, 4])
def test_an_entry_that_cannot_be_read_at_all_hides_no_other_run(
    number: int, stored: SmallRun, tmp_path: Path, spotrun: Spotrun
) -> None:
    new_run(tmp_path / "runs", "other", "1123456789")
    entry = tmp_path / "runs" / "demo-0123456789" / key_of(number)
    entry.unlink()
    entry.mkdir()
    states = {row["run"]: row["state"] for row in spotrun("status", "--json").json}
    assert states["demo-0123456789"] == "unreadable"
    assert len(states) == 2
    for verb in ("stop other", "down other -y", "reap", "prune --older 1d --dry-run", "events other"):
        assert spotrun(*verb.split()).code == 0, verb
    assert spotrun("events", "demo").code == StoreError.exit_code


def test_logs_says_what_wrote_no_output(stored: SmallRun, spotrun: Spotrun) -> None:
    assert spotrun("logs", "demo-0123456789") == (0, "", "no instance wrote any output\n")
    stored.store.put("logs/99/000000.log", b"hello\n")
    said = spotrun("logs", "demo-0123456789", "--attempt", 1)
    assert said == (0, "", "it wrote no output; without --attempt and --member, all output is printed\n")


@pytest.mark.parametrize("number", [0, 4])
def test_readable_part_of_a_damaged_run_is_shown_before_the_error(
    number: int, stored: SmallRun, tmp_path: Path, spotrun: Spotrun
) -> None:
    stored.store.put("logs/1/000000.log", b"epoch 7 of the training\n")
    stored.store.delete(key_of(number))
    code, output, letter = spotrun("logs", "demo-0123456789")
    assert "epoch 7 of the training" in output
    assert (code, letter.count("error: ")) == (LEDGER, 1)
    code, output, letter = spotrun("checkpoints", "ls", "demo-0123456789")
    assert code == LEDGER
    if number:
        assert "has no checkpoints" in output
        assert "only the entries before it are shown" in " ".join(letter.split())
