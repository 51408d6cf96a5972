"""The pages: the generated ones are what they are generated from, and each fragment of a job is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools import reference
from spotrun.spec.file import load_spec
from spotrun.spec.schema import json_schema
from tests.support.repository import ROOT

NEEDED = {
    "policy.strategy": {"policy": {"deadline": "8h"}},
    "budget.warn_at": {"budget": {"max_usd": 40}},
    "checkpoint.keep_best.mode": {"checkpoint": {"keep_best": {"metric": "val_loss"}}},
    "checkpoint.keep_best.count": {"checkpoint": {"keep_best": {"metric": "val_loss"}}},
    "local.script.when": {"local": {"script": {"then": "interrupt"}}},
    "local.script.then": {"local": {"script": {"when": "after 5m"}}},
    "local.script.notice": {"local": {"script": {"when": "after 5m", "then": "interrupt"}}},
    "local.recommended": {"local": {"market": "generated"}},
    "notify.on": {"notify": {"webhook": "$SLACK_WEBHOOK"}},
    "resources.cloud": {"checkpoint": {"uri": "s3://bucket/runs"}},
    "train.args": {"train": {"script": "train.py"}},
}
"""What a key needs beside it to make a job."""
LISTS = ("notify", "local.script")


@pytest.mark.parametrize("name", reference.pages())
def test_a_generated_page_is_what_it_is_generated_from(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == reference.pages()[name], "make reference"


def test_each_key_of_a_job_has_an_example_and_each_example_is_one_of_a_key() -> None:
    keys = {
        f"{path}.{key}".strip(".")
        for path, section in reference.sections(json_schema())
        for key, field in section["properties"].items()
        if reference.reference_in(field) is None
    }
    assert keys == reference.EXAMPLES.keys()


@pytest.mark.parametrize("path", reference.EXAMPLES)
def test_an_example_of_the_reference_is_part_of_a_valid_job(path: str, tmp_path: Path) -> None:
    job = _merged(NEEDED.get(path, {}), _nested(path, reference.EXAMPLES[path]))
    for name in LISTS:
        section, _, key = f".{name}".rpartition(".")
        holder = job.get(section.strip("."), {}) if section else job
        if key in holder:
            holder[key] = [holder[key]]
    if not {"run", "train"} & job.keys():
        job["train"] = {"script": "train.py"}
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    load_spec(tmp_path / "job.yaml")


def _nested(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for key, value in other.items():
        both[key] = _merged(both[key], value) if isinstance(both.get(key), dict) else value
    return both
