"""Whose run is it? One from elsewhere executes nothing in the user's name before they have said that it is theirs."""

from __future__ import annotations

import shutil
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from spotrun.errors import LedgerDamaged, NightUnderWay, RunCopied
from spotrun.folder.ledger import NewestSeen, key_of
from spotrun.run import events as ev
from spotrun.run.entry_bytes import encode_entry
from spotrun.run.events import Cause, Entry, RunCreated
from spotrun.runner.creation import would_be_created
from spotrun.runs import attend, nightly
from spotrun.runs.known import is_known, remember, require_known
from spotrun.runs.known_record import forget
from spotrun.runs.open_run import OpenRun, open_run
from spotrun.spec.model import RunSpec, sha256_of
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Spotrun
from tests.support.histories import START, History
from tests.support.stored_runs import store_run

CANARY = "canary"


def job(name: str, cloud: str = "local") -> dict[str, object]:
    return {
        "name": name,
        "workdir": "/",
        "train": {"run": f"touch {CANARY}"},
        "resources": {"cloud": cloud},
        "notify": [{"command": f"touch {CANARY}"}],
    }


def planted(runs: Path, name: str = "demo", uid: str = "0123456789", cloud: str = "local") -> str:
    """The folder of a run that somebody else has put beside the others. It has failed, which is news."""
    spec = RunSpec.from_dict(job(name, cloud))
    history = History(uid=uid, name=name, spec=spec.to_dict())
    store = LocalStore(runs / f"{name}-{uid}")
    history.put_into(store)
    return store.uri


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPOTRUN_KNOWN", str(tmp_path / "known"))
    return tmp_path / "known"


@pytest.mark.parametrize("verb", ["tick", "resume"])
def test_a_run_from_elsewhere_is_carried_on_only_after_a_yes(verb: str, runs: Path, spotrun: Spotrun) -> None:
    planted(runs)
    said = spotrun(verb, "demo")
    assert said.code == 2
    assert f"'touch {CANARY}' in a shell on this machine" in said.err
    assert f"spotrun {verb} demo-0123456789 --yes" in said.err
    assert not (runs.parent / CANARY).exists()


def test_a_yes_is_remembered_for_these_very_bytes(runs: Path, known: Path) -> None:
    uri = planted(runs)
    assert not is_known(open_run(uri, None))
    remember(open_run(uri, None))
    assert is_known(open_run(uri, None))
    assert (known / "0123456789").stat().st_mode & 0o077 == 0
    (runs / "demo-0123456789" / "ledger" / "00000000.json").unlink()
    (runs / "demo-0123456789").rename(runs / "gone")
    planted(runs, name="demo", cloud="aws")
    assert not is_known(open_run(uri, None)), "another run of the same name and uid"


def test_down_ends_a_run_from_elsewhere_and_runs_none_of_its_commands(runs: Path, spotrun: Spotrun) -> None:
    planted(runs)
    said = spotrun("down", "demo", "--yes")
    assert said.code == 0
    assert "no notifications" in said.err
    assert not (runs.parent / CANARY).exists()


def test_a_night_does_not_carry_on_what_another_has_planted(runs: Path) -> None:
    planted(runs)
    spec = RunSpec.from_dict(job("demo") | {"checkpoint": {"uri": str(runs)}})
    with pytest.raises(NightUnderWay, match="created elsewhere or from another job"):
        nightly.attend_tonight(spec, None, _no_new_one)
    assert not (runs.parent / CANARY).exists()


@pytest.fixture
def nightly_job(runs: Path) -> RunSpec:
    """A job of which code runs elsewhere, with files."""
    (runs.parent / "work").mkdir()
    (runs.parent / "work" / "train.py").write_text("print()")
    written = job("demo", "aws") | {"checkpoint": {"uri": str(runs)}, "workdir": str(runs.parent / "work")}
    return RunSpec.from_dict(written | {"budget": {"max_usd": "15"}, "resources": in_image("docker:team/it:1")})


def in_image(name: str) -> dict[str, str]:
    return {"cloud": "aws", "image_id": name}


def last_night(runs: Path, created: RunCreated) -> OpenRun:
    """The run that another machine, or another person, has left unfinished."""
    store = LocalStore(runs / f"demo-{created.uid}")
    first = Entry(number=0, run=created.uid, nonce="theirs", at=START, writer="theirs", event=created)
    store.put_if_absent(key_of(0), encode_entry(first))
    return open_run(store.uri, None)


def carried_on(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run that tonight carries on."""
    found = list[str]()
    monkeypatch.setattr(attend, "attend", lambda run, **_: found.append(run.id))
    monkeypatch.setattr(nightly, "with_baseline_price", lambda spec: spec)
    monkeypatch.setattr(nightly, "with_image", lambda spec, _: (spec, []))  # no registry is asked for its image
    nightly.attend_tonight(spec, None, _no_new_one)
    return found


def test_scheduler_on_a_new_machine_carries_on_a_run_of_this_job_and_never_remembers_it(
    nightly_job: RunSpec, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yesterday = would_be_created(nightly_job, "0123456789")
    elsewhere = {**yesterday.spec, "workdir": "/elsewhere"}
    yesterday = replace(yesterday, clock_epoch=START, spec=elsewhere, spec_sha256=sha256_of(elsewhere))
    run = last_night(runs, yesterday)
    assert carried_on(nightly_job, monkeypatch) == [run.id]
    assert not is_known(run)
    (Path(nightly_job.workdir) / "train.py").write_text("print(1)")
    with pytest.raises(NightUnderWay, match="it differs in work folder"):
        carried_on(nightly_job, monkeypatch)


def test_machine_that_knows_a_run_of_the_job_carries_on_no_other_one(
    nightly_job: RunSpec, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer of the store has put an equal one in front of it, whose key is theirs."""
    ours = last_night(runs, replace(would_be_created(nightly_job, "0123456789"), clock_epoch=START))
    remember(ours)
    later = START + timedelta(days=1)
    theirs = last_night(runs, replace(would_be_created(nightly_job, "fffffffff0"), clock_epoch=later))
    assert carried_on(nightly_job, monkeypatch) == [ours.id]
    ours.ledger.append(lambda _: ev.RunFailed(cause=Cause.QUOTA, detail="none left"))
    with pytest.raises(NightUnderWay, match=f"{theirs.id} is not finished, and was created elsewhere"):
        carried_on(nightly_job, monkeypatch)


@pytest.mark.parametrize("part", ["work folder", "budget_usd", "budget", "notify", "image", "setup"])
def test_night_carries_on_no_strangers_run_of_another_entry_0(
    part: str, nightly_job: RunSpec, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {
        "budget": {"budget": {"max_usd": "100000"}},
        "notify": {"notify": [{"command": "touch theirs"}]},
        "image": {"resources": in_image("docker:team/it:1@sha256:" + "f" * 64)},
        "setup": {"setup": "touch theirs"},
    }.get(part, {})
    written = would_be_created(RunSpec.from_dict({**nightly_job.to_dict(), **theirs}), "0123456789")
    alone = {"work folder": {"workdir_sha256": "f" * 64}, "budget_usd": {"budget_usd": Decimal(100_000)}}
    run = last_night(runs, replace(written, **alone.get(part, {})))
    with pytest.raises(NightUnderWay, match="it differs in"):
        carried_on(nightly_job, monkeypatch)
    assert not is_known(run)


@pytest.mark.parametrize("host", [None, "elsewhere"])
def test_night_carries_on_no_strangers_run_that_would_train_on_this_machine(
    host: str | None, nightly_job: RunSpec, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = {"purchase_usd": 1, "months": 1, "days_per_month": 1, "host": host}
    at_home = {"resources": {"cloud": "aws", "home": "box"}, "hardware": {"box": box}}
    spec = RunSpec.from_dict({**nightly_job.to_dict(), **at_home})
    run = last_night(runs, replace(would_be_created(spec, "0123456789"), clock_epoch=START))
    if host is not None:
        assert carried_on(spec, monkeypatch) == [run.id]
        return
    with pytest.raises(NightUnderWay, match="its code would run on this machine"):
        carried_on(spec, monkeypatch)


@pytest.mark.parametrize("verb", ["tick", "resume"])
def test_question_says_that_a_run_would_train_on_this_machine_and_rent_others(
    verb: str, runs: Path, spotrun: Spotrun
) -> None:
    box = {"purchase_usd": 1, "months": 1, "days_per_month": 1}
    spec = RunSpec.from_dict(
        {**job("demo", "aws"), "resources": {"cloud": "aws", "home": "box"}, "hardware": {"box": box}}
    )
    History(uid="0123456789", name="demo", spec=spec.to_dict()).put_into(LocalStore(runs / "demo-0123456789"))
    said = spotrun(verb, "demo")
    assert said.code == 2
    assert "on this machine, with your rights, and rent instances on aws" in said.err


def _no_new_one() -> NoReturn:
    raise AssertionError("a new night was begun")


# -- what this machine has read of a known run -------------------------------------------------------------------------


def stopped_run(runs: Path) -> Path:
    """The folder of a run of this user, which has spent money and has a request to stop."""
    history = History(uid="0123456789", name="demo", spec=RunSpec.from_dict(job("demo")).to_dict())
    history.running()
    history.write(ev.StopRequested(by="this user"))
    return store_run(runs, history)


def cut(folder: Path, entries: int) -> None:
    """What another writer can do where objects can be deleted."""
    for path in sorted((folder / "ledger").iterdir())[entries:]:
        path.unlink()


VERBS = (("tick",), ("resume",), ("stop",), ("down", "--yes"), ("report",), ("status",), ("events",))


@pytest.mark.parametrize("entries", [1, 6])
def test_ledger_of_a_known_run_that_was_cut_does_not_begin_again(
    entries: int, runs: Path, spotrun: Spotrun, known: Path
) -> None:
    folder = stopped_run(runs)
    remember(open_run(str(folder), None))
    assert spotrun("events", "demo").code == 0
    cut(folder, entries)
    for verb, *more in VERBS:
        said = spotrun(verb, "demo", *more)
        assert said.code == LedgerDamaged.exit_code, verb
        assert f"entry {entries} is missing, and this machine has read entry 6 before" in said.out + said.err, verb
    assert len(list((folder / "ledger").iterdir())) == entries, "a command began the run again"
    assert not (runs.parent / CANARY).exists()


@pytest.mark.parametrize("number", [5, 6])
def test_entry_that_was_replaced_after_it_was_read_is_damage(number: int, runs: Path, spotrun: Spotrun) -> None:
    folder = stopped_run(runs)
    remember(open_run(str(folder), None))
    open_run(str(folder), None).ledger.refresh()
    store, event = LocalStore(folder), ev.ResumeRequested(by="theirs")
    entry = Entry(number=number, run="0123456789", nonce="theirs", at=START, writer="theirs", event=event)
    store.delete(key_of(number))
    assert store.put_if_absent(key_of(number), encode_entry(entry))
    said = spotrun("tick", "demo")
    assert said.code == LedgerDamaged.exit_code
    assert "the entries up to 6 are not those that this machine has read before" in said.err


def test_own_entry_is_recorded_and_the_record_only_rises(runs: Path, known: Path) -> None:
    folder = stopped_run(runs)
    remember(open_run(str(folder), None))
    behind, ahead = open_run(str(folder), None), open_run(str(folder), None)
    behind.ledger.refresh()
    ahead.ledger.append(lambda _: ev.ResumeRequested(by="this user"))
    assert (newest := ahead.known.newest()) is not None
    assert newest == (7, ahead.ledger.history_sha256)
    behind.known.record(NewestSeen(6, "0" * 64))
    assert behind.known.newest() == newest
    assert (known / "newest-entries" / "0123456789").stat().st_mode & 0o077 == 0
    behind.ledger.refresh()
    forget("0123456789")
    assert not list((known / "newest-entries").iterdir())


def failed_run(runs: Path, uid: str = "0123456789") -> Path:
    history = History(uid=uid, name="demo", spec=RunSpec.from_dict(job("demo")).to_dict())
    history.write(ev.RunFailed(cause=Cause.QUOTA, detail="none left"))
    return store_run(runs, history)


@pytest.fixture
def copied(runs: Path) -> tuple[Path, Path]:
    """The folder of a known run that has failed, and a copy of it in another store."""
    folder = failed_run(runs)
    remember(open_run(str(folder), None))
    open_run(str(folder), None).ledger.refresh()
    shutil.copytree(runs, runs.parent / "copies")
    return folder, runs.parent / "copies" / folder.name


@pytest.mark.parametrize("verb", ["resume", "tick"])
def test_copy_of_a_run_that_is_still_there_is_not_continued(
    verb: str, copied: tuple[Path, Path], spotrun: Spotrun
) -> None:
    folder, copy = copied
    said = spotrun(verb, str(copy), "--yes")
    assert said.code == RunCopied.exit_code
    assert f"{copy} is a copy of {folder}" in said.err
    assert f"try: `spotrun resume {folder}` continues the run" in said.err
    folder.rename(folder.with_name("away"))
    require_known(open_run(str(copy), None), yes=False)  # the run was moved


def test_ledger_of_a_copy_that_went_on_does_not_damage_the_run(copied: tuple[Path, Path], spotrun: Spotrun) -> None:
    folder, copy = copied
    open_run(str(copy), None).ledger.append(lambda _: ev.ResumeRequested(by="this user"))
    assert spotrun("events", str(copy)).code == 0
    assert spotrun("events", str(folder)).code == 0
    (link := folder.parent.parent / "link").symlink_to(folder.parent)
    open_run(str(link / folder.name), None).ledger.append(lambda _: ev.ResumeRequested(by="this user"))
    cut(folder, 2)
    assert spotrun("events", str(folder)).code == LedgerDamaged.exit_code, "a link leads to the run itself"


def test_down_says_that_the_run_is_a_copy(copied: tuple[Path, Path], spotrun: Spotrun) -> None:
    folder, copy = copied
    said = spotrun("down", str(copy), "--yes")
    assert said.code == 0
    assert f"note: {copy} is a copy of {folder}; the run's instances belong to the run there" in said.err
    assert "is a copy" not in spotrun("down", str(folder), "--yes").err


def test_removed_copy_leaves_the_run_known(copied: tuple[Path, Path], spotrun: Spotrun) -> None:
    folder, copy = copied
    assert spotrun("rm", str(copy), "--yes").code == 0
    assert not copy.exists()
    assert is_known(open_run(str(folder), None))
    assert spotrun("rm", str(folder), "--yes").code == 0
    assert not list((folder.parent.parent / "known" / "newest-entries").iterdir())


def test_rm_takes_the_known_run_of_a_name(runs: Path, spotrun: Spotrun) -> None:
    folder = failed_run(runs)
    remember(open_run(str(folder), None))
    theirs = planted(runs, uid="9999999999")
    said = spotrun("rm", "demo", "--yes")
    assert said.code == 0
    assert "demo-9999999999 is newer, and not known on this machine" in said.err
    assert (folder.exists(), Path(theirs).exists()) == (False, True)


def test_run_in_the_store_of_its_job_is_found_by_its_name_where_it_was_created(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = failed_run(runs)
    remember(open_run(str(folder), None))
    open_run(str(folder), None).ledger.refresh()
    planted(runs, name="theirs", uid="9999999999")
    monkeypatch.delenv("SPOTRUN_STORE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for reference in ("demo", "dem", "0123456789", "demo-0123456789"):
        assert str(folder) in spotrun.call("events", reference, "--json") + open_run(reference, None).uri
    assert spotrun.call_json("status", "demo")[0]["run"] == "demo-0123456789"
    elsewhere = f"in another store: spotrun status --store {runs}"
    assert elsewhere in spotrun.call("status")
    assert elsewhere in spotrun.call("status", "--store", str(tmp_path / "known")), "a store without runs is named"
    assert "another store" not in spotrun.call("status", "--open", "--store", f"{runs}/"), "it is this one"
    failed_run(tmp_path / "others", "5555555555")
    assert elsewhere in spotrun.call("status", "--open", "--store", str(tmp_path / "others"))
    assert "no run 'theirs'" in spotrun.call("events", "theirs", code=3), "it is not known here"
    assert "no run 'demo'" in spotrun.call("events", "demo", "--store", str(tmp_path), code=3), "another store is named"
    folder.rename(tmp_path / "moved")
    assert "no run 'demo'" in spotrun.call("events", "demo", code=3)


@pytest.mark.parametrize("record", [None, "", "\xff", "0 1", "z 99 z", f"{'0' * 64} 99 {'0' * 64}"])
def test_record_of_an_earlier_version_or_of_another_run_says_nothing(
    record: str | None, runs: Path, known: Path
) -> None:
    folder = stopped_run(runs)
    run = open_run(str(folder), None)
    known.mkdir()
    (known / "0123456789").write_text(run.first_sha256)
    if record is not None:
        (known / "newest-entries").mkdir()
        (known / "newest-entries" / "0123456789").write_text(record, encoding="latin-1")
    assert run.known.is_known()
    assert run.known.newest() is None
    assert run.ledger.refresh().next_number == 7
    assert run.known.newest() == (6, run.ledger.history_sha256)


def test_nothing_is_recorded_of_a_run_that_is_not_known(runs: Path, spotrun: Spotrun, known: Path) -> None:
    folder = stopped_run(runs)
    assert spotrun("status").code == spotrun("events", "demo").code == 0
    assert not known.exists()
    cut(folder, 1)
    assert spotrun("events", "demo").code == 0
