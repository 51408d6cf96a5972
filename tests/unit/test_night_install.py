"""What `spotrun night install` refuses before it asks a cloud for anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotrun.night import rows as night_rows
from tests.support.called_spotrun import Spotrun, spotrun  # noqa: F401

AT = ("--at", "22:00 Europe/Berlin")
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
        ("", ("--at", "22:00"), "is not a time with its zone"),
        ("", (*AT, "--days", "mon-fry"), "'mon-fry' is no day"),
        ("", (*AT, "--deadline", "07:00"), "a deadline that counts from its beginning"),
        ("", (*AT, "--cloud", "local"), "nights without a machine of yours are not built for local"),
        ("", (*AT, "--budget", "much"), "--budget"),
        ("notify: [{command: mail me}]\n", AT, "job.yaml:5: notify[0].command: a night has no machine of yours"),
        ("notify: [{command: mail me}]\n", (*AT, *GOOGLE), "job.yaml:5: notify[0].command: a night has no machine"),
        ("aws: {advisor: ./spot-advisor-data.json}\n", AT, "is a file of this machine"),
    ],
)
def test_what_cannot_be_a_night_is_refused_with_one_error(
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


def test_a_store_without_nights_says_so(tmp_path: Path, spotrun: Spotrun) -> None:  # noqa: F811
    assert spotrun("night", "ls", "--store", tmp_path).out == f"no nights in {tmp_path}\n"
    said = spotrun("night", "rm", "resnet50", "--store", tmp_path, "-y")
    assert said.code == 3
    assert "no night 'resnet50' is installed" in said.err


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
    assert "nights/a holds what is no night" in said.err
    assert "try: install it anew" in said.err
