"""The pages: generated ones are fresh, job fragments valid, links lead somewhere, commands are run or say why not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.tools import reference
from spotrun.spec.file import load_spec
from spotrun.spec.own_machine import HardwareSpec
from spotrun.spec.schema import json_schema
from tests.support.doc_pages import COMMANDS, Block, blocks, pages, prints
from tests.support.repository import ROOT

NEEDED = {
    "train.state": {"train": {"run": "./simulate"}},
    "elastic.min_nodes": {"elastic": {"virtual_ranks": 2}},
    "elastic.promise": {"elastic": {"virtual_ranks": 2}},
    "policy.strategy": {"policy": {"deadline": "8h"}},
    "budget.warn_at": {"budget": {"max_usd": 40}},
    "checkpoint.keep_best.mode": {"checkpoint": {"keep_best": {"metric": "val_loss"}}},
    "checkpoint.keep_best.count": {"checkpoint": {"keep_best": {"metric": "val_loss"}}},
    "local.script.when": {"local": {"script": {"then": "interrupt"}}},
    "local.script.then": {"local": {"script": {"when": "after 5m"}}},
    "local.script.notice": {"local": {"script": {"when": "after 5m", "then": "interrupt"}}},
    "local.script.members": {"local": {"script": {"when": "after 5m", "then": "interrupt"}}},
    "local.recommended": {"local": {"market": "generated"}},
    "report.baseline_usd_per_hour": {"report": {"baseline": "g5.xlarge"}},
    "notify.on": {"notify": {"webhook": "$SLACK_WEBHOOK"}},
    "resources.cloud": {"checkpoint": {"uri": "s3://bucket/runs"}},
    "train.args": {"train": {"script": "train.py"}},
}
"""What a key needs beside it to make a job."""
NEEDED |= {
    f"slurm.partitions.{key}": {"slurm": {"partitions": {"name": "p", "capacity": "spot", "usd_per_node_hour": 1}}}
    for key in ("name", "capacity", "usd_per_node_hour", "accelerators", "cpus", "memory", "gres", "qos", "max_time")
}
NEEDED |= {
    f"hardware.NAME.{key}": {
        "hardware": {
            "NAME": {"purchase_usd": 1, "months": 1, "days_per_month": 1}
            | ({"watts": 1, "usd_per_kwh": 1} if key in ("watts", "usd_per_kwh") else {})
        }
    }
    for key in (*HardwareSpec.model_fields,)
}
NEEDED |= {
    f"resources.{key}": {
        "hardware": {"box": {"purchase_usd": 1, "months": 1, "days_per_month": 1}},
        "checkpoint": {"uri": "s3://bucket/runs"},
        "resources": {"cloud": "aws"} if key == "home" else {},
    }
    for key in ("home", "any_of")
}
LISTS = ("notify", "local.script", "slurm.partitions")
EXECUTED = {
    *("quickstart.md", "cost.md", "deadlines.md", "plan.md", "estimate.md", "checkpoints.md", "results.md"),
    *("troubleshooting.md", "skypilot.md"),
}
"""The pages that tests/runs/test_docs.py does, and the last one tests/unit/test_sky.py."""
BLOCKS = [(page, block) for page in pages() for block in blocks(page)]


def _where(found: tuple[Path, Block]) -> str:
    return f"{found[0].relative_to(ROOT)}:{found[1].line}"


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


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= 6144


@pytest.mark.parametrize("found", [each for each in BLOCKS if each[1].kind in COMMANDS], ids=_where)
def test_a_block_of_commands_is_run_by_a_test_or_says_why_not(found: tuple[Path, Block]) -> None:
    page, block = found
    executed = page.name in EXECUTED and block.kind == "console" and block.commands()
    assert executed or block.not_run, "write <!-- not run: REASON --> before it, or have it executed"


def test_no_block_hides_what_kind_it_is() -> None:
    assert not [f"{page}:{number}" for page in pages() if page.parent.name == "docs" for number in _bare(page)]


@pytest.mark.parametrize(
    "found",
    [
        each
        for each in BLOCKS
        if each[1].kind == "yaml" and each[1].file not in ("wrong.yaml", "study.yaml", "task.yaml")
    ],
    ids=_where,
)
def test_a_fragment_of_a_job_is_part_of_a_valid_one(found: tuple[Path, Block], tmp_path: Path) -> None:
    whole = re.search("^(train|run):", found[1].text, re.M)
    (tmp_path / "job.yaml").write_text(found[1].text + ("" if whole else "train: {script: train.py}\n"))
    (tmp_path / "train.py").write_text("")
    load_spec(tmp_path / "job.yaml")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_each_link_to_a_section_leads_to_one(page: Path) -> None:
    lost = []
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
        if anchor not in _anchors(page if not target else page.parent / target):
            lost.append(f"{target}#{anchor}")
    assert lost == []


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        ("wrote a: step 12\n", "wrote a: step 1,600\n", True),
        ("$1.05 of  $2\n", "$0.0123 of $1\n", True),
        ("first\n...\nlast\n", "first\nsomething\nelse\nlast\n", True),
        ("a run is completed\n", "a run is stopped\n", False),
        ("first\n", "first\nand more\n", False),
    ],
)
def test_a_page_shows_what_was_printed_if_only_figures_differ(page: str, printed: str, same: bool) -> None:
    assert prints(page, printed) is same


def _bare(page: Path) -> Iterator[int]:
    fences = [(number, line) for number, line in enumerate(page.read_text().splitlines(), 1) if line.startswith("```")]
    return (number for number, line in fences[::2] if line == "```")


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)).lower().replace(" ", "-")
        for heading in headings
    }


def _nested(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for key, value in other.items():
        both[key] = _merged(both[key], value) if isinstance(both.get(key), dict) else value
    return both
