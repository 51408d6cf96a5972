"""`report.baseline`: what savings are told against, where it is not the type that trained."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.account.summary import summarise
from spotrun.errors import SpecInvalid
from spotrun.runs.pinning import with_baseline_price
from spotrun.spec.file import load_spec
from spotrun.spec.model import RunSpec
from tests.support.histories import FREE_STORAGE, History


def job(baseline: str, **resources: str) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "demo",
            "workdir": "/tmp",
            "train": {"run": "true"},
            "resources": {"cloud": "local", **resources},
            "report": {"baseline": baseline},
            "checkpoint": {"uri": "s3://bucket/runs"},
        }
    )


def trained(spec: RunSpec) -> History:
    """360 s are compared: a start of 100 s, and 260 s of training."""
    history = History(FREE_STORAGE, spec=spec.to_dict())
    history.running(price="0.36")
    return history.after(260)


def test_a_type_is_compared_at_the_price_that_launch_finds() -> None:
    spec = with_baseline_price(job("a2-highgpu-1g", accelerators="V100:1"))
    history = trained(spec)
    summary = summarise(history.state, history.now)
    assert summary.total.counterfactual_usd == Decimal("3.6734") * 360 / 3600
    assert "at $3.6734 an hour, a2-highgpu-1g on demand (report.baseline)" in summary.assumptions
    assert with_baseline_price(spec) == spec, "a run that is resumed or launched from its ledger keeps its price"


def test_baseline_without_a_price_changes_nothing_and_is_reported() -> None:
    history = trained(job("a2-highgpu-1g"))
    summary = summarise(history.state, history.now)
    assert summary.total.counterfactual_usd == Decimal("3.60") * 360 / 3600
    assert "the same type (that of a2-highgpu-1g, report.baseline, was not looked up)" in summary.assumptions


def test_unavailable_baseline_is_refused_with_the_nearest_type() -> None:
    with pytest.raises(SpecInvalid, match=r"local does not offer p3\.3xlarge in the job") as caught:
        with_baseline_price(job("p3.3xlarge"))
    assert caught.value.hint == "did you mean p3.2xlarge?"


@pytest.mark.parametrize("baseline", ["on-demand", "2.50", "g5.xlarge"])
def test_a_baseline_survives_the_ledger(baseline: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: demo\nworkdir: .\ntrain: {{run: 'true'}}\nreport: {{baseline: {baseline}}}\n")
    spec = with_baseline_price(load_spec(path))
    assert RunSpec.from_dict(spec.to_dict()).report == spec.report
