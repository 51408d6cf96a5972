"""Whose run is it? One from elsewhere executes nothing in the user's name before they have said that it is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotrun.errors import NightUnderWay
from spotrun.folder.ledger import key_of
from spotrun.run.events import encode_entry
from spotrun.runs import nightly
from spotrun.runs.known import is_known, remember
from spotrun.runs.open_run import open_run
from spotrun.spec.model import RunSpec
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Spotrun
from tests.support.histories import History

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
    for entry in history.entries:
        store.put_if_absent(key_of(entry.number), encode_entry(entry))
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
    assert f"'touch {CANARY}' in a shell of this machine" in said.err
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
    assert "nobody is notified" in said.err
    assert not (runs.parent / CANARY).exists()


def test_a_night_does_not_carry_on_what_another_has_planted(runs: Path) -> None:
    planted(runs)
    spec = RunSpec.from_dict(job("demo") | {"checkpoint": {"uri": str(runs)}})
    with pytest.raises(NightUnderWay, match="created elsewhere or from another job"):
        nightly.attend_tonight(spec, lambda: None, _no_new_one)
    assert not (runs.parent / CANARY).exists()


@pytest.mark.parametrize(("cloud", "carried"), [("local", False), ("aws", True)])
def test_a_scheduler_on_a_new_machine_carries_on_its_own_job_if_it_runs_elsewhere(
    cloud: str, carried: bool, runs: Path
) -> None:
    run = open_run(planted(runs, cloud=cloud), None)
    assert nightly.may_carry_on(run, run.spec.model_copy(update={"workdir": "/elsewhere"})) is carried
    other = run.spec.model_copy(update={"notify": ()})
    assert is_known(run) is carried
    assert nightly.may_carry_on(open_run(planted(runs, uid="9876543210", cloud=cloud), None), other) is False


def _no_new_one() -> object:
    raise AssertionError("a new night was begun")
