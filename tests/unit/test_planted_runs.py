"""Runs, keys and records that another writer of the store has put where this user's own would be."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.cli.reap import _is_certain
from spotrun.errors import LedgerDamaged, RunCopied, SpotrunError, StoreUnavailable
from spotrun.folder import keys, setup_cache
from spotrun.folder.final_status import KEY as FINAL
from spotrun.folder.final_status import read_final_status, write_final_status
from spotrun.folder.ledger import Ledger, key_of
from spotrun.folder.status_objects import RUNNER_KEY
from spotrun.folder.sweep_record import SweepRecord, create_sweep, find_sweep, record_trial, replace_sweep
from spotrun.forecast.planning import _measured, _states
from spotrun.run import events as ev
from spotrun.run.entry_bytes import encode_entry, parted, seal, signed
from spotrun.run.events import Cause, Entry, RunCreated
from spotrun.runner import creation
from spotrun.runner.creation import differences, prepare_run, would_be_created
from spotrun.runs.known import create_known, is_known, remember
from spotrun.runs.known_record import forget
from spotrun.runs.open_run import OpenRun, open_run, ours_first, runs_in, writer
from spotrun.runs.open_run import attended as is_attended
from spotrun.runs.prepared import RUNS_MAX, _earlier_runs, _if_going_on
from spotrun.runs.sweeps import NamedSweep, sweep_named
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from spotrun.spec.trials import trial_spec, with_params
from spotrun.store.local import LocalStore
from spotrun.store.opening import open_store
from spotrun.sweep import starting as sweep_start
from spotrun.sweep.attending import Attendant, Sweeping, SweepJob
from spotrun.sweep.rungs import Begin, SweepPlan
from tests.support.called_spotrun import Spotrun
from tests.support.histories import START, History, intended
from tests.support.stored_runs import store_run

JOB = "name: net\ntrain: {script: train.py}\nresources: {accelerators: 'V100:1'}\ncheckpoint: {uri: runs}\n"
COMMAND = "notify: [{command: touch canary}]\n"
RIGHT = ("--grid", "lr=1e-3,3e-4", "--budget", "40", "--name", "net")
PARAMS = ({"lr": "1e-3"}, {"lr": "3e-4"})
PACK_KEY = "a" * 64
FIRST = Begin(number=1, budget_usd=Decimal(20), work=None)


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPOTRUN_KNOWN", str(tmp_path / "known"))
    monkeypatch.setattr(creation, "_try_out", lambda _: None)
    return tmp_path / "known"


@pytest.fixture
def job(runs: Path) -> Path:
    (runs.parent / "train.py").write_text('parser.add_argument("--lr")\n')
    path = runs.parent / "net.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def spec(job: Path, runs: Path) -> RunSpec:
    return load_spec(job, {"checkpoint.uri": str(runs)})


def put_entry(run_folder: Path, created: RunCreated) -> str:
    """A run of another writer, which nobody takes care of."""
    first = Entry(number=0, run=created.uid, nonce="theirs", at=START, writer="theirs", event=created)
    store = LocalStore(run_folder)
    assert store.put_if_absent(key_of(0), encode_entry(first))
    return store.uri


# -- a sweep -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that a sweep's threads would take care of."""
    found = list[str]()
    monkeypatch.setattr(Attendant, "start", lambda self: found.append(self.run.id))
    return found


@pytest.fixture
def sweep(spec: RunSpec, spotrun: Spotrun, job: Path, monkeypatch: pytest.MonkeyPatch) -> Sweeping:
    """A sweep of two trials, of which none has begun."""
    with monkeypatch.context() as patch:
        patch.setattr(sweep_start, "_attended", lambda *_, **__: sweep_start.Outcome(None, None))
        assert spotrun("sweep", job, *RIGHT, "-y").code == 0
    found = named(spec)
    plan = SweepPlan(trials=2, budget_usd=Decimal(40), max_parallel=1)
    return Sweeping(found, SweepJob(spec, PARAMS, plan), [])


def named(spec: RunSpec) -> NamedSweep:
    found = sweep_named("net", spec.checkpoint.uri)
    assert found is not None
    return found


def uid_from_the_record(record: SweepRecord, number: int) -> str:
    """The only uid that the record of a sweep has ever led to."""
    return hashlib.sha256(f"{record.uid}/{number}".encode()).hexdigest()[:10]


def trial_of_another(spec: RunSpec, uid: str) -> RunSpec:
    job = trial_spec(with_params(spec, PARAMS[0]), "net-1", Decimal(20))
    return RunSpec.model_validate(job.model_dump(mode="json") | {"notify": [{"command": "touch canary"}]})


def test_trial_ignores_a_run_that_was_put_where_the_record_leads(
    sweep: Sweeping, spec: RunSpec, attended: list[str]
) -> None:
    uid = uid_from_the_record(named(spec).record, 1)
    planted = open_run(prepare_run(trial_of_another(spec, uid), "theirs", uid=uid).create(), None)
    assert sweep._begin(FIRST, None)
    assert not is_known(planted)
    assert len(attended) == 1
    assert attended[0] != planted.id
    assert is_known(open_run(attended[0], spec.checkpoint.uri))


def test_trial_has_no_key_that_was_there_before(sweep: Sweeping, spec: RunSpec, attended: list[str]) -> None:
    uid, store = uid_from_the_record(named(spec).record, 1), open_store(spec.checkpoint.uri)
    theirs = keys.make(store, uid)
    private = store.get(keys.key_of(uid, theirs))
    store.put(f"keys/{uid}", private)
    assert sweep._begin(FIRST, None)
    assert open_run(attended[0], spec.checkpoint.uri).created.public_key != theirs
    assert prepare_run(spec, "test", uid=uid).create()
    assert open_run(uid, spec.checkpoint.uri).created.public_key not in ("", theirs)


def test_trial_that_another_process_has_recorded_is_left_to_it(
    sweep: Sweeping, spec: RunSpec, attended: list[str]
) -> None:
    planted = open_run(prepare_run(trial_of_another(spec, "aaaaaaaaaa"), "theirs", uid="aaaaaaaaaa").create(), None)
    record_trial(named(spec).store, named(spec).record, 1, "aaaaaaaaaa")
    with pytest.raises(SpotrunError, match="another process has begun trial 1 of the sweep net as net-1-aaaaaaaaaa"):
        sweep._begin(FIRST, None)
    assert not is_known(planted)
    assert attended == []
    (ours,) = [each for each in runs_in(spec.checkpoint.uri) if each.id != planted.id]
    assert ours.ledger.refresh().terminal is not None


def test_trial_whose_recorded_run_was_deleted_begins_again(sweep: Sweeping, spec: RunSpec, attended: list[str]) -> None:
    record_trial(named(spec).store, named(spec).record, 1, "aaaaaaaaaa")
    assert sweep._begin(FIRST, None)
    assert [run.id for run in named(spec).runs()] == attended


def test_repeated_sweep_does_not_take_a_recorded_strangers_run_by_a_yes(
    sweep: Sweeping, spec: RunSpec, spotrun: Spotrun, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_start, "_attended", lambda *_, **__: sweep_start.Outcome(None, None))
    assert spotrun("sweep", job, *RIGHT, "-y").code == 0
    planted = open_run(prepare_run(trial_of_another(spec, "aaaaaaaaaa"), "theirs", uid="aaaaaaaaaa").create(), None)
    record_trial(named(spec).store, named(spec).record, 1, "aaaaaaaaaa")
    said = spotrun("sweep", job, *RIGHT, "-y")
    assert said.code == 2
    assert "net-1-aaaaaaaaaa was not created by this user on this machine" in said.err
    assert "'touch canary' in a shell on this machine" in said.err
    assert "spotrun tick net-1-aaaaaaaaaa --yes" in said.err
    assert not is_known(planted)
    remember(planted)
    assert spotrun("sweep", job, *RIGHT, "-y").code == 0


def test_trial_whose_answer_was_lost_is_created_once(
    sweep: Sweeping, spec: RunSpec, attended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create, answers = Ledger.create, iter(("lost",))

    def loses_its_first_answer(ledger: Ledger, event: RunCreated) -> Entry:
        entry = create(ledger, event)
        if next(answers, None):
            raise StoreUnavailable("the answer was lost")
        return entry

    monkeypatch.setattr(Ledger, "create", loses_its_first_answer)
    assert not sweep._begin(FIRST, None)
    assert sweep._begin(replace(FIRST, budget_usd=Decimal(19)), None)
    assert [run.id for run in named(spec).runs()] == attended
    assert [each for each in named(spec).store.folders() if each.startswith("net-1-")] == attended


def test_trial_of_a_killed_command_is_found_and_one_that_looks_alike_is_not(
    sweep: Sweeping, spec: RunSpec, attended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = trial_of_another(spec, "aaaaaaaaaa")
    prepare_run(theirs, "theirs", uid="aaaaaaaaaa", part_of="sweep net").create()
    assert named(spec).run(1) is None
    with monkeypatch.context() as patch:
        patch.setattr(NamedSweep, "begin", lambda *_: (_ for _ in ()).throw(StoreUnavailable("killed here")))
        assert not sweep._begin(FIRST, None)
    (found,) = named(spec).runs()
    assert found.created.uid != "aaaaaaaaaa"


def test_sweep_takes_no_more_than_a_stop_from_its_record(sweep: Sweeping, spec: RunSpec) -> None:
    ours = named(spec).record
    replace_sweep(named(spec).store, replace(ours, uid="0" * 16, trials=99, stopped_by="theirs"))
    assert sweep._is_stopped_elsewhere(at_once=True)
    assert sweep._sweep.record == replace(ours, stopped_by="theirs")


def test_sweep_whose_record_was_put_there_before_asks_as_a_new_one_does(
    spec: RunSpec, spotrun: Spotrun, job: Path, sweep: Sweeping
) -> None:
    planted = replace(named(spec).record, time_scale=0.1, trials=99, deadline_s=9e7, recorded=False)
    replace_sweep(named(spec).store, planted)
    said = spotrun("sweep", job, *RIGHT)
    assert said.code == 2, "there is no terminal to ask on"
    assert "net: 2 trials" in said.out


SPOILED = {
    "another run": ("sweeps/net/{}/1", b'{"run": "aaaaaaaaaa"}'),
    "no run": ("sweeps/net/{}/1", b"noise"),
    "no sweep": ("sweeps/net.json", b"noise"),
}


@pytest.mark.parametrize("verb", ["stop", "down"])
@pytest.mark.parametrize("spoiled", SPOILED)
def test_sweep_is_stopped_and_ended_whatever_another_writer_has_put_in_place_of_its_records(
    spoiled: str, verb: str, sweep: Sweeping, spec: RunSpec, attended: list[str], spotrun: Spotrun
) -> None:
    assert sweep._begin(FIRST, None)
    key, data = SPOILED[spoiled]
    named(spec).store.put(key.format(named(spec).record.uid), data)
    assert spotrun(verb, "net", *["-y"] * (verb == "down")).code == 0
    assert open_run(attended[0], spec.checkpoint.uri).ledger.refresh().stop_requested


def test_trial_whose_key_was_overwritten_keeps_no_other_from_its_end(
    sweep: Sweeping, spec: RunSpec, attended: list[str], spotrun: Spotrun
) -> None:
    store = named(spec).store
    assert sweep._begin(FIRST, None)
    assert sweep._begin(replace(FIRST, number=2), None)
    (key,) = store.list(f"keys/{attended[0].rpartition('-')[2]}")
    store.put(key.key, b"noise")
    said = spotrun("down", "net", "-y")
    assert said.code != 0
    assert "is not the key of this run" in said.err
    assert open_run(attended[1], spec.checkpoint.uri).ledger.refresh().terminal is not None


def test_trial_that_goes_on_does_not_begin_again_when_its_record_is_gone(
    sweep: Sweeping, spec: RunSpec, attended: list[str], spotrun: Spotrun, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep._begin(FIRST, None)
    replace_sweep(named(spec).store, replace(named(spec).record, uid="0" * 16, began_at=datetime.now(UTC)))
    monkeypatch.setattr(sweep_start, "_attended", lambda *_, **__: sweep_start.Outcome(None, None))
    assert spotrun("sweep", job, *RIGHT, "-y").code == 0
    assert [run.id for run in named(spec).runs()] == attended
    assert record_trial(named(spec).store, named(spec).record, 1, attended[0].rpartition("-")[2]), (
        "it is recorded again"
    )


def test_sweep_that_was_put_there_with_the_name_of_a_run_is_not_stopped_in_its_place(
    spec: RunSpec, spotrun: Spotrun
) -> None:
    run = create_known(prepare_run(spec, "test"))
    theirs = SweepRecord(name="net", uid="0" * 16, began_at=START, time_scale=1.0, trials=2, wanted={}, recorded=True)
    assert create_sweep(open_store(spec.checkpoint.uri), theirs)
    assert run.id in spotrun("status", "net").out
    assert spotrun("stop", "net").code == 0
    assert run.ledger.refresh().stop_requested


def test_runs_of_an_earlier_versions_sweep_are_found_by_its_uid(spec: RunSpec, runs: Path) -> None:
    record = SweepRecord(
        name="old", uid="0123456789abcdef", began_at=START, time_scale=1.0, trials=2, wanted={"--grid": ["lr=1,2"]}
    )
    store = open_store(str(runs))
    assert create_sweep(store, record)
    assert find_sweep(store, "old") == record
    prepare_run(trial_spec(spec, "old-1", Decimal(20)), "test", uid=uid_from_the_record(record, 1)).create()
    assert [run.id for run in NamedSweep(store, record).runs()] == [f"old-1-{uid_from_the_record(record, 1)}"]


def test_run_that_was_replaced_while_it_was_stopped_is_not_carried_on(spec: RunSpec, runs: Path) -> None:
    job = trial_spec(spec, "net-1", Decimal(20))
    attendant = Attendant(create_known(prepare_run(job, "test")), "net", 1, {})
    created, folder = attendant.run.created, runs / attendant.run.id
    (folder / key_of(0)).unlink()
    put_entry(folder, created)
    with pytest.raises(LedgerDamaged, match="replaced the first entry"):
        attendant.carry_on()


# -- what a trial's training leaves for the next one -------------------------------------------------------------------


@pytest.fixture
def with_setup(sweep: Sweeping, spec: RunSpec, attended: list[str], tmp_path: Path) -> tuple[Sweeping, ev.PackDigest]:
    """The sweep when its first trial trains; the digest of the setup cache that the trial's agent has made."""
    sweep._wanted = sweep._wanted._replace(spec=spec.model_copy(update={"setup": "pip install x"}))
    assert sweep._begin(FIRST, None)
    (tmp_path / "setup.tar").write_bytes(b"as setup made it")
    launch = began(sweep, intended(now=sweep._attendants[0].run.clock.now(), usd="0.01"))
    packed = setup_cache.describe(launch, tmp_path / "setup.tar")
    setup_cache.upload(sweep._attendants[0].run.store, PACK_KEY, packed, tmp_path / "setup.tar")
    began(sweep, started(launch, packed.digest(PACK_KEY)))
    return sweep, packed.digest(PACK_KEY)


def began(sweep: Sweeping, event: ev.AnyEvent) -> int:
    """Write an entry of the first trial."""
    entry = sweep._attendants[0].run.ledger.append(lambda _: event)
    assert entry is not None
    return entry.number


def started(launch: int, pack: ev.PackDigest) -> ev.AttemptStarted:
    setup = ev.SetUp(seconds=9.0, how="run", packed_bytes=16, pack=pack)
    return ev.AttemptStarted(launch=launch, instance_id=f"i-{launch}", booted_at=START, setup=setup)


def begun_after(sweep: Sweeping) -> OpenRun:
    assert sweep._begin(Begin(number=2, budget_usd=Decimal(20), work=None), None)
    return sweep._attendants[1].run


def cached(run: OpenRun) -> list[str]:
    return [each.key for each in run.store.list("environments/")]


def test_trial_gets_the_setup_cache_of_an_earlier_one_and_its_entry_0_names_it(
    with_setup: tuple[Sweeping, ev.PackDigest],
) -> None:
    sweep, pack = with_setup
    second = begun_after(sweep)
    assert second.created.copied_packs == (pack,)
    assert len(cached(second)) == 2


def test_trial_gets_no_setup_cache_that_an_earlier_trials_training_has_made(
    with_setup: tuple[Sweeping, ev.PackDigest], tmp_path: Path
) -> None:
    """The training replaces the cache, and writes entries like those of an agent that has just set up."""
    sweep, _ = with_setup
    first = sweep._attendants[0].run
    (tmp_path / "setup.tar").write_bytes(b"as evil made it!")
    evil, other = setup_cache.describe(99, tmp_path / "setup.tar"), "e" * 64
    setup_cache.discard(first.store, PACK_KEY)
    for key in (PACK_KEY, other):
        assert setup_cache.upload(first.store, key, evil, tmp_path / "setup.tar")
    attempt = first.ledger.state.current_attempt
    assert attempt is not None
    began(sweep, ev.AttemptEnded(attempt=attempt, cause=ev.Cause.EXTERNAL, last_step=0))
    for key in (PACK_KEY, other):
        launch = began(sweep, intended(now=first.clock.now(), usd="0.01"))
        began(sweep, started(launch, evil.digest(key)))
        began(sweep, ev.AttemptEnded(attempt=first.ledger.state.next_number - 1, cause=ev.Cause.EXTERNAL, last_step=0))
    assert first.ledger.state.voids == []
    second = begun_after(sweep)
    assert second.created.copied_packs == ()
    assert cached(second) == []


# -- creating a run ----------------------------------------------------------------------------------------------------


def changed(created: RunCreated, part: str) -> RunCreated:
    """The same entry 0 with another value in this part."""
    job = {"notify": [{"command": "touch canary"}], "budget": {"max_usd": "100000"}, "envs": {"SECRET": "1"}}
    if part in job:
        return replace(created, spec={**created.spec, part: job[part]})
    values: dict[str, Any] = {
        "workdir_sha256": "f" * 64,
        "start_sha256": "f" * 64,
        "script_sha256": "f" * 64,
        "spec_sha256": "f" * 64,
        "budget_usd": Decimal(100_000),
        "price_cap_usd_per_hour": Decimal(1),
        "time_scale": 2.0,
        "deadline_at": START,
        "interruption_bands": {"us-east-1/g5.xlarge": ">20%"},
        "billing": replace(created.billing, minimum_s=1.0),
        "storage": replace(created.storage, source="theirs"),
        "simulated": not created.simulated,
        "spotrun": "0.0",
        "revision": ev.Revision(commit="f" * 40),
        "benched": {"V100:1": 1.0},
        "part_of": "sweep net",
        "setup_packs": (ev.PackDigest(PACK_KEY, "f" * 64),),
        "epochs_end": ev.EpochsEnd.DURABLE,
        "ledger_version": ev.GANG_LEDGER_VERSION,
        "name": "theirs",
        "uid": "fffffffff0",
    }
    return replace(created, **{part: values[part]})


PARTS = (
    *("notify", "budget", "envs", "workdir_sha256", "start_sha256", "script_sha256", "spec_sha256", "budget_usd"),
    *("price_cap_usd_per_hour", "time_scale", "deadline_at", "interruption_bands", "billing", "storage", "simulated"),
    *("spotrun", "revision", "benched", "part_of", "setup_packs", "epochs_end", "ledger_version"),
    *("name", "uid"),
)


def test_each_field_of_entry_0_is_compared_but_the_moment_and_the_key() -> None:
    own = {"clock_epoch", "public_key"}
    assert set(RunCreated.__struct_fields__) - own == set(PARTS) - {"notify", "budget", "envs"} | {"spec"}


def test_entry_0_that_differs_in_any_part_is_another_one(spec: RunSpec) -> None:
    ours = would_be_created(spec, "0123456789")
    moved = replace(ours, spec={**ours.spec, "workdir": "/elsewhere"})
    later = replace(moved, spec_sha256=spec.model_copy(update={"workdir": "/elsewhere"}).spec_sha256, clock_epoch=START)
    assert differences(replace(later, public_key="f" * 64), ours) == []
    for part in PARTS:
        assert differences(changed(ours, part), ours), part
    hidden = replace(ours, spec={**ours.spec, "\x1b[2J": 1})
    assert differences(hidden, ours)[0] == "another key of the job", "no text of theirs is shown"
    other = changed(changed(ours, "budget"), "workdir_sha256")
    assert differences(other, ours)[:2] == ["work folder", "budget of the job"]


@pytest.mark.parametrize("part", ["workdir_sha256", "budget_usd", "notify"])
def test_run_that_is_put_in_the_place_of_a_new_one_is_damage_and_not_known(
    part: str, spec: RunSpec, runs: Path
) -> None:
    new = prepare_run(spec, "test", uid="0123456789")
    uri = put_entry(runs / "net-0123456789", changed(new.created, part))
    with pytest.raises(LedgerDamaged, match="another process wrote the first entry") as told:
        create_known(new)
    assert "it differs in" in told.value.message
    assert not is_known(OpenRun(uri, writer("test")))
    with pytest.raises(LedgerDamaged):
        prepare_run(spec, "test", uid="0123456789", shared=True).create()


def test_run_that_equals_a_new_one_is_still_not_the_one_that_was_written(spec: RunSpec, runs: Path) -> None:
    new = prepare_run(spec, "test", uid="0123456789")
    uri = put_entry(runs / "net-0123456789", new.created)
    with pytest.raises(LedgerDamaged):
        create_known(new)
    assert not is_known(OpenRun(uri, writer("test")))
    assert prepare_run(spec, "test", uid="0123456789", shared=True).create() == uri, (
        "two calls of a night create one run"
    )


def test_run_is_known_from_the_moment_that_its_entry_can_be_there(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = prepare_run(spec, "test")

    def is_killed_after_it(ledger: Ledger, event: RunCreated) -> Entry:
        create(ledger, event)
        raise KeyboardInterrupt

    create = Ledger.create
    monkeypatch.setattr(Ledger, "create", is_killed_after_it)
    with pytest.raises(KeyboardInterrupt):
        create_known(new)
    assert is_known(OpenRun(new.uri, writer("test")))


# -- a run by its name -------------------------------------------------------------------------------------------------


@pytest.fixture
def ours(spec: RunSpec) -> OpenRun:
    """A run of this user: net-0123456789."""
    return create_known(prepare_run(spec, "test", uid="0123456789"))


def copied(runs: Path, run: OpenRun, name: str, uid: str | None = None) -> OpenRun:
    """A newer run that another writer puts next to this one, with its uid or its name."""
    uid = uid or run.created.uid
    later = run.created.clock_epoch + timedelta(days=1)
    return open_run(
        put_entry(runs / f"{name}-{uid}", replace(run.created, name=name, uid=uid, clock_epoch=later)), None
    )


def is_stopped(run: OpenRun) -> bool:
    return run.ledger.refresh().stop_requested


@pytest.mark.parametrize("reference", ["net", "net-0123456789", "0123456789", "ne", "0123"])
def test_copy_of_a_known_run_does_not_stand_in_its_way(
    reference: str, ours: OpenRun, runs: Path, spotrun: Spotrun
) -> None:
    theirs = copied(runs, ours, "evil")
    assert spotrun("events", reference).out.count("net") == 1
    assert spotrun("stop", reference).code == 0
    assert is_stopped(ours)
    assert spotrun("tick", reference).code == 0
    assert ours.ledger.refresh().terminal is not None
    assert spotrun("down", reference, "-y").code == 0
    assert theirs.ledger.refresh().next_number == 1


@pytest.mark.parametrize("verb", [("tick",), ("stop",), ("down", "-y"), ("resume",)])
def test_copy_of_a_known_run_is_no_run(verb: tuple[str, ...], ours: OpenRun, runs: Path, spotrun: Spotrun) -> None:
    theirs = copied(runs, ours, "evil")
    said = spotrun(verb[0], "evil", *verb[1:])
    assert said.code == RunCopied.exit_code
    assert "has the uid of net-0123456789, which is known on this machine" in said.err
    assert theirs.ledger.refresh().next_number == 1
    rows = {row["run"]: row["state"] for row in spotrun("status", "--json").json}
    assert rows == {"net-0123456789": "created", "evil-0123456789": "copied"}


@pytest.mark.parametrize(("name", "uid"), [("net", "fffffffff0"), ("net-0123456789", "fffffffff0")])
def test_newer_run_of_the_same_name_does_not_stand_for_a_known_one(
    name: str, uid: str, ours: OpenRun, runs: Path, spotrun: Spotrun
) -> None:
    theirs = copied(runs, ours, name, uid)
    said = spotrun("stop", name)
    assert said.code == 0
    assert f"note: this is net-0123456789; {theirs.id} is newer, and not known on this machine" in said.err
    assert is_stopped(ours)
    assert spotrun("tick", name).code == spotrun("down", name, "-y").code == 0
    assert theirs.ledger.refresh().next_number == 1
    assert open_run(theirs.id, str(runs)).id == theirs.id


@pytest.mark.parametrize("verb", ["report", "events", "logs"])
def test_newer_run_of_the_same_name_is_not_read_in_place_of_a_known_one(
    verb: str, ours: OpenRun, runs: Path, spotrun: Spotrun
) -> None:
    theirs = copied(runs, ours, "net", "fffffffff0")
    assert f"note: this is net-0123456789; {theirs.id} is newer" in spotrun(verb, "net").err


@pytest.mark.parametrize("verb", ["stop", "down"])
@pytest.mark.parametrize("reference", ["net", "net-0123456789"])
@pytest.mark.parametrize("kind", ["a link to itself", "a pipe", "a linked folder"])
def test_run_is_stopped_and_ended_whatever_is_in_the_place_of_a_sweeps_record(
    kind: str, reference: str, verb: str, ours: OpenRun, runs: Path, spotrun: Spotrun
) -> None:
    if kind == "a linked folder":
        (runs / "sweeps").symlink_to("sweeps")
    else:
        (runs / "sweeps").mkdir()
        record = runs / "sweeps" / f"{reference}.json"
        record.symlink_to(record.name) if kind == "a link to itself" else os.mkfifo(record)
    assert spotrun(verb, reference, *["-y"] * (verb == "down")).code == 0
    assert is_stopped(ours)


@pytest.mark.parametrize("verb", ["stop", "down"])
def test_id_of_a_run_means_the_run_where_a_sweep_has_that_name_and_nothing_is_known(
    verb: str, ours: OpenRun, known: Path, spotrun: Spotrun
) -> None:
    """A night's run is not known on the machine of its owner."""
    (known / ours.created.uid).unlink()
    began_at = ours.created.clock_epoch
    theirs = SweepRecord(
        name=ours.id, uid="0" * 16, began_at=began_at, time_scale=1.0, trials=3, wanted={}, recorded=True
    )
    assert create_sweep(open_store(str(Path(ours.uri).parent)), theirs)
    assert spotrun(verb, ours.id, *["-y"] * (verb == "down")).code == 0
    assert is_stopped(ours)


@pytest.mark.parametrize("place", ["agent-1.json", "runner.json", ""])
def test_status_lists_all_runs_whatever_is_in_the_place_of_a_status_object(
    place: str, ours: OpenRun, runs: Path, spotrun: Spotrun
) -> None:
    theirs = copied(runs, ours, "evil", "fffffffff0")
    hints = runs / theirs.id / "hints"
    if place:
        hints.mkdir(parents=True, exist_ok=True)
    os.mkfifo(hints / place if place else hints)
    rows = {row["run"] for row in spotrun("status", "--json").json}
    assert rows == {ours.id, theirs.id}


def test_runner_whose_last_sign_is_in_the_future_takes_care_of_nothing(ours: OpenRun, runs: Path) -> None:
    ours.store.put_status(RUNNER_KEY, b"{}")
    assert is_attended(ours)
    os.utime(runs / ours.id / RUNNER_KEY, times=(4e9, 4e9))
    assert not is_attended(ours)


def test_run_with_the_uid_of_a_known_one_is_ended_with_a_note_and_not_reaped(
    ours: OpenRun, runs: Path, spotrun: Spotrun
) -> None:
    history = History(uid=ours.created.uid, name="evil")
    history.running()
    theirs = open_run(str(store_run(runs.parent / "other", history)), None)
    (member,) = theirs.ledger.refresh().members()
    assert member.recorded is not None
    instance = SimpleNamespace(run_uid=theirs.created.uid, instance_id=member.recorded.instance_id)
    stored = {theirs.created.uid: theirs}
    assert not _is_certain(instance, stored)  # type: ignore[arg-type]
    said = spotrun("down", theirs.uri, "-y")
    assert "note: this machine knows another run with the uid 0123456789" in said.err
    forget(ours.created.uid)
    assert _is_certain(instance, stored)  # type: ignore[arg-type]


def test_final_status_counts_only_with_the_owners_signature(ours: OpenRun) -> None:
    ours.ledger.append(lambda _: ev.RunFailed(cause=Cause.QUOTA, detail="none left"))
    write_final_status(ours.store, ours.ledger)
    assert (status := read_final_status(ours.store, ours.created)) is not None
    assert status.state == "failed"
    signature, body = parted(ours.store.get(FINAL))
    ours.store.put(FINAL, seal(body))
    assert read_final_status(ours.store, ours.created) is None
    ours.store.put(FINAL, seal(signed(body.replace(b'"failed"', b'"completed"'), signature)))
    assert read_final_status(ours.store, ours.created) is None


def test_earlier_final_status_does_not_count_once_the_run_went_on(ours: OpenRun, runs: Path, spotrun: Spotrun) -> None:
    """A writer takes the entries after it away, and puts it back."""
    ours.ledger.append(lambda _: ev.RunFailed(cause=Cause.QUOTA, detail="none left"))
    write_final_status(ours.store, ours.ledger)
    before, entries = ours.store.get(FINAL), set((runs / ours.id / "ledger").iterdir())
    ours.ledger.append(lambda _: ev.ResumeRequested(by="me"))
    ours.store.put_status(FINAL, before)
    for later in set((runs / ours.id / "ledger").iterdir()) - entries:
        later.unlink()
    (row,) = spotrun("status", "--json").json
    assert row["state"] == "damaged"
    assert "this machine has read entry" in spotrun("why", ours.id).err


@pytest.mark.parametrize("planted", ["a damaged run", "many newer runs"])
def test_launch_tells_of_the_users_own_run_that_goes_on_whatever_else_has_its_name(
    planted: str, ours: OpenRun, runs: Path
) -> None:
    for number in range(1 if planted == "a damaged run" else 12):
        theirs = copied(runs, ours, "net", f"{number:010x}")
        if planted == "a damaged run":
            (runs / theirs.id / key_of(1)).write_bytes(b"noise")
    ours.store.put_status(RUNNER_KEY, b"{}")
    earlier = _earlier_runs("net", open_store(str(runs)))
    assert [note for run in earlier[:RUNS_MAX] if (note := _if_going_on(run)) and ours.id in note]


def test_plan_measures_the_users_own_run_whatever_else_has_its_name(ours: OpenRun, spec: RunSpec, runs: Path) -> None:
    for number in range(12):
        theirs = copied(runs, ours, "net", f"{number:010x}")
        (runs / theirs.id / key_of(1)).write_bytes(b"noise")
    _measured(spec, str(runs))  # fails at none of them
    assert [state.created.uid for state in _states(ours_first(runs_in(str(runs)))[:10])] == [ours.created.uid]


def test_copied_run_that_is_not_known_is_ended_by_its_name(ours: OpenRun, runs: Path, spotrun: Spotrun) -> None:
    copied(runs, ours, "evil")
    forget("0123456789")
    for verb in ("tick", "report"):
        assert spotrun(verb, "net").code == RunCopied.exit_code
    assert spotrun("stop", "0123456789").code == RunCopied.exit_code, "the uid of both"
    assert spotrun("stop", "net").code == 0
    assert is_stopped(ours)
    assert spotrun("down", "net-0123456789", "-y").code == 0
    assert ours.ledger.refresh().terminal is not None


def test_planted_folder_does_not_keep_a_damaged_run_from_being_ended(
    ours: OpenRun, runs: Path, spotrun: Spotrun
) -> None:
    (runs / ours.id / key_of(0)).write_text("{}")
    theirs = copied(runs, ours, "evil")
    ends = "`spotrun reap --cloud CLOUD --run 0123456789` ends its instances"
    assert ends in spotrun("down", "net", "-y").out
    remember(theirs)
    assert ends not in spotrun("down", "net", "-y").out, "its instances are those of the run that is known"
