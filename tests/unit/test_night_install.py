"""What `spotrun night install` refuses before it asks a cloud for anything."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.clouds import registry
from spotrun.clouds.aws.nights import AwsNights
from spotrun.errors import RunNotFound, SpecInvalid
from spotrun.folder.night import VARIABLE, Night, Pin, pin_for, pinned
from spotrun.folder.night_record import BegunNight, NightRecord, NumberedNight, names
from spotrun.night import installation
from spotrun.night import rows as night_rows
from spotrun.spec.model import RunSpec
from tests.support.called_spotrun import Spotrun, spotrun  # noqa: F401

AT = ("--at", "22:00 Europe/Berlin")
NIGHT = Night(
    name="a",
    spec={},
    workdir_sha256="",
    at="22:00",
    zone="UTC",
    days=("fri",),
    winter_offset_s=0,
    cloud="aws",
    region="us-east-1",
    installed_at=datetime(2026, 11, 27, tzinfo=UTC),
    spotrun="0",
)
GOOGLE = ("--cloud", "gcp", "--store", "gs://bucket/runs")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import lightning\n")
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: resnet50\ntrain: {script: train.py}\nresources: {cloud: aws}\ncheckpoint: {uri: 's3://bucket/runs'}\n"
    )
    return path


@pytest.mark.parametrize(
    ("line", "flags", "words"),
    [
        ("", ("--at", "22:00"), "is not a time with a time zone"),
        ("", (*AT, "--days", "mon-fry"), "'mon-fry' is not a day"),
        ("", (*AT, "--deadline", "07:00"), "a duration, counted from the night's beginning"),
        ("", (*AT, "--cloud", "local"), "local has no service that runs nights while your machine is off"),
        ("", (*AT, "--budget", "much"), "--budget"),
        (
            "notify: [{command: mail me}]\n",
            AT,
            "job.yaml:5: notify[0].command: a night does not use any machine of yours",
        ),
        ("notify: [{command: mail me}]\n", (*AT, *GOOGLE), "job.yaml:5: notify[0].command: a night does not"),
        ("aws: {advisor: ./spot-advisor-data.json}\n", AT, "is a file on this machine"),
        ("", (*AT, "--name", "n" * 49), "--name: " + "n" * 49 + " is too long for a night: its IAM role's name"),
        ("", (*AT, *GOOGLE, "--name", "n" * 36), " is too long for a night: its service name, spotrun-night-…"),
    ],
)
def test_job_that_cannot_be_a_night_is_refused_with_one_error(
    job: Path,
    spotrun: Spotrun,  # noqa: F811
    line: str,
    flags: tuple[str, ...],
    words: str,
) -> None:
    job.write_text(job.read_text() + line)
    said = spotrun("night", "install", job, *flags, "-y")
    assert said.code == 2, said
    assert words in said.err
    assert "try:" in said.err or "write" in said.err


def test_all_mistakes_of_a_night_are_told_at_once(job: Path, spotrun: Spotrun) -> None:  # noqa: F811
    wrong = ("--at", "25:00", "--days", "mon-fry")
    lines = "notify: [{command: mail me}]\naws: {advisor: ./advisor.json}\nnum_nodes: two\n"
    job.write_text(job.read_text() + lines)
    said = spotrun("night", "install", job, *wrong, "--region", "us-eas-1", "--deadline", "07:00", "-y")
    assert said.code == 2
    assert "error: 7 problems in " in said.err
    for part in (
        "job.yaml:5: notify[0].command: a night does not use any machine of yours",
        "job.yaml:6: aws.advisor: ",
        "job.yaml:7: num_nodes: must be a whole number",
        "--region: AWS has no region us-eas-1; did you mean us-east-1?",
        "--deadline: a night's deadline has to be a duration",
        "  --at '25:00' is not a time with a time zone; write",
        "  --days 'mon-fry': 'mon-fry' is not a day; write",
    ):
        assert part in said.err
    said = spotrun("night", "install", job.with_name("jib.yaml"), *wrong, "-y")
    assert said.code == 2
    assert "jib.yaml: no such file; did you mean " in said.err
    assert "--at '25:00' is not a time" in said.err
    assert "'mon-fry' is not a day" in said.err


def test_mistakes_that_only_the_cloud_can_tell_are_listed_together(
    job: Path,
    spotrun: Spotrun,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SpecInvalid("us-east-1 already has a night resnet50", hint="give this one another --name")

    def prepare(*_: object) -> None:
        raise SpecInvalid("no suitable offering is within max_price", hint="1", key=("resources", "max_price"))

    def addresses(*_: object) -> dict[str, str]:
        return {"HOOK": "http://plain"}

    monkeypatch.setattr(AwsNights, "require", refuse)
    monkeypatch.setattr(AwsNights, "addresses", addresses)
    monkeypatch.setattr(installation, "prepare_later", prepare)
    job.write_text(job.read_text() + "notify: [{webhook: $HOOK}]\nsecrets: [HOOK]\n")
    said = spotrun("night", "install", job, *AT, "--region", "us-east-1", "-y")
    assert said.code == 2
    assert "error: 3 problems in " in said.err
    for part in ("already has a night resnet50", "is within max_price", "HOOK"):
        assert part in said.err


def test_a_store_without_nights_says_so(tmp_path: Path, spotrun: Spotrun) -> None:  # noqa: F811
    assert spotrun("night", "ls", "--store", tmp_path).out == f"no nights in {tmp_path}\n"
    said = spotrun("night", "rm", "resnet50", "--store", tmp_path, "-y")
    assert said.code == 3
    assert "no night 'resnet50' is installed" in said.err


@pytest.mark.parametrize("words", [("run",), ("rm", "-y")])
def test_path_is_refused_as_the_name_of_a_night(tmp_path: Path, spotrun: Spotrun, words: tuple[str, ...]) -> None:  # noqa: F811
    for store in (str(tmp_path), "s3://bucket/runs"):
        said = spotrun("night", *words, "../x", "--store", store)
        assert said.code == RunNotFound.exit_code
        assert "'../x' cannot be the name of a night" in said.err


def test_a_night_whose_record_is_damaged_hides_no_other(
    tmp_path: Path,
    spotrun: Spotrun,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in (("a", "{"), ("b", "{}")):
        (tmp_path / "nights" / name).mkdir(parents=True)
        (tmp_path / "nights" / name / "night.json").write_text(text)
    read = night_rows.row_of
    monkeypatch.setattr(night_rows, "row_of", lambda store, name, now: name if name == "b" else read(store, name, now))
    said = spotrun("night", "ls", "--store", tmp_path, "--json")
    assert (said.code, said.json) == (5, ["b"])
    assert "nights/a does not hold a valid night" in said.err
    assert "try: install the night again" in said.err


def test_pin_of_a_job_with_many_webhooks_fits_into_the_environment_of_a_function() -> None:
    """Lambda has 4 KB for all variables: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html"""
    variables = [f"WEBHOOK_OF_TEAM_{number}" for number in range(8)]
    spec = RunSpec.model_validate(
        {
            "name": "resnet50",
            "workdir": "/",
            "train": {"script": "train.py", "args": ["--long"] * 200},
            "resources": {"cloud": "aws"},
            "checkpoint": {"uri": "s3://spotrun-123456789012-us-east-1/runs"},
            "notify": [{"webhook": f"${each}"} for each in variables],
            "secrets": {each: f"ssm:/spotrun/team/{each}" for each in [*variables, "HF_TOKEN"]},
        }
    )
    pin = pin_for(replace(NIGHT, spec=spec.to_dict()), None)
    assert len(pin.text) < 3500
    told = RunSpec.from_dict(pin.night.spec)
    assert told.webhook_references == spec.webhook_references
    assert "HF_TOKEN" not in pin.text
    assert pinned({VARIABLE: pin.text}) == pin


# -- what `night ls` says of a store in which a stranger writes ------------------------------------------------------


class Installed:
    """A night in a store, and what its function is pinned to."""

    def __init__(self, store: Path) -> None:
        self.pin: Pin | None = pin_for(NIGHT, None)
        NightRecord(str(store), "a").install(NIGHT)

    def wrong(self, *_: object) -> str:
        return ""

    def pinned(self, name: str) -> Pin | None:
        return self.pin

    def usd(self, hours: float) -> Decimal:
        return Decimal(1)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    found = Installed(tmp_path)
    monkeypatch.setattr(night_rows, "nights_of", lambda night: found)
    return found


def row(spotrun: Spotrun, store: Path) -> dict[str, object]:  # noqa: F811
    (found,) = spotrun("night", "ls", "--store", store, "--json").json
    assert isinstance(found, dict)
    return found


def test_night_as_it_was_installed_has_no_trouble(
    installed: Installed,
    tmp_path: Path,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    assert row(spotrun, tmp_path)["trouble"] == ""


def test_record_that_a_stranger_has_put_is_listed_as_trouble(
    installed: Installed,
    tmp_path: Path,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    path = tmp_path / "nights" / "a" / "night.json"
    path.write_text(path.read_text().replace("22:00", "23:00"))
    found = row(spotrun, tmp_path)
    assert "night.json is not what was installed" in str(found["trouble"])
    assert found["next_due"] is None


def test_night_that_an_earlier_spotrun_installed_is_listed_with_what_to_type(
    installed: Installed,
    tmp_path: Path,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    installed.pin = None
    assert "install the night again: spotrun night install" in str(row(spotrun, tmp_path)["trouble"])


def test_run_that_a_planted_record_names_is_not_listed(
    installed: Installed,
    tmp_path: Path,
    spotrun: Spotrun,  # noqa: F811
) -> None:
    assert installed.pin is not None
    own = NightRecord(str(tmp_path), "a", installed.pin)
    for record, due in ((own, "2026-11-27"), (NightRecord(str(tmp_path), "a"), "\x1b[2Jplanted")):
        begun = BegunNight(due=due, run="0123456789", at=datetime(2026, 11, 27, tzinfo=UTC))
        record.newest()
        assert record.add(NumberedNight(record.next_number, begun))
    assert row(spotrun, tmp_path)["last"] == "2026-11-27"


@pytest.mark.parametrize(
    ("field", "text"),
    [("zone", "../../etc/passwd"), ("at", "late"), ("cloud", "../x"), ("region", "a b"), ("days", ["all"])],
)
def test_record_with_fields_that_no_spotrun_writes_is_refused_and_hides_no_other(
    installed: Installed,
    tmp_path: Path,
    spotrun: Spotrun,  # noqa: F811
    field: str,
    text: object,
) -> None:
    (tmp_path / "nights" / "b").mkdir()
    record = json.loads((tmp_path / "nights" / "a" / "night.json").read_text())
    (tmp_path / "nights" / "b" / "night.json").write_text(json.dumps({**record, field: text}))
    (tmp_path / "nights" / "A\x1b[2J").mkdir()
    (tmp_path / "nights" / "A\x1b[2J" / "night.json").write_text("{}")
    said = spotrun("night", "ls", "--store", tmp_path, "--json")
    assert [each["name"] for each in said.json] == ["a"]
    assert said.code == 5
    assert "nights/b does not hold a valid night" in said.err


@pytest.mark.parametrize("words", [("rm", "a", "-y"), ("run", "a")])
def test_record_that_names_another_night_neither_removes_nor_begins_any(
    installed: Installed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spotrun: Spotrun,  # noqa: F811
    words: tuple[str, ...],
) -> None:
    called = list[str]()
    monkeypatch.setattr(registry, "nights_of", lambda night: installed)
    monkeypatch.setattr(installed, "begin", lambda name, now: called.append(name) or {}, raising=False)
    monkeypatch.setattr(installed, "remove", lambda name, store, say: called.append(name), raising=False)
    NightRecord(str(tmp_path), "a").install(replace(NIGHT, name="victim"))
    NightRecord(str(tmp_path), "victim").install(replace(NIGHT, name="victim"))
    said = spotrun("night", *words, "--store", tmp_path)
    assert (said.code, called) == (5, [])
    assert "nights/a/night.json is the record of another night, 'victim'" in said.err
    assert "try: install the night again: spotrun night install" in said.err
    assert names(str(tmp_path)) == ["a", "victim"]
    NightRecord(str(tmp_path), "a").install(NIGHT)
    assert spotrun("night", *words, "--store", tmp_path).code == 0
    assert called == ["a"]
