"""benchmarks/downtime_gang: that what the survivors of a gang lose is what the rules say, second by second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import downtime_gang
from benchmarks.downtime_gang import OURS, Loss, figures, loss
from benchmarks.downtime_market import Market, Setting

STEADY = replace(Setting(boot_s=(60.0, 60.0), setup_s=(50.0, 50.0), unpack=0.1)).unwarned
ALL, PACKED = downtime_gang.RULES


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_survivors_wait_for_one_boot_and_its_unpacking(seed: int) -> None:
    """Whichever member it is: each seed takes another one."""
    found = loss(STEADY, 3, seed).by_rule[OURS]
    assert found["poll"] + found["capacity"] <= 5
    assert found["boot"] == pytest.approx(60, abs=3)
    assert found["set-up"] == pytest.approx(5, abs=2)
    assert found["restore"] == pytest.approx(STEADY.imports_s, abs=2)
    assert 0 < found["rework"] <= STEADY.every_s + STEADY.commit_s + 2


def test_teardown_waits_for_the_slowest_of_all_new_members() -> None:
    setting = replace(STEADY, boot_s=(60.0, 120.0), setup_s=(0.0, 180.0))
    found, market = loss(setting, 4, 5).by_rule, Market(5, setting)
    starts = [market.start_s(number) for number in (4, 5, 6, 7)]
    anew, packed = found[ALL], found[PACKED]
    assert anew["boot"] + anew["set-up"] == pytest.approx(max(boot + setup for boot, setup in starts))
    assert packed["boot"] + packed["set-up"] == pytest.approx(max(boot + setup / 10 for boot, setup in starts))
    assert 0 <= anew["poll"] <= 15
    assert anew["rework"] == packed["rework"] == pytest.approx(found[OURS]["rework"], abs=1)


def test_ours_is_compared_job_by_job() -> None:
    cause = dict.fromkeys(downtime_gang.CAUSES, 0.0)
    jobs = [
        Loss({OURS: cause | {"boot": ours}, ALL: cause | {"boot": 100.0}, PACKED: cause | {"boot": 50.0}})
        for ours in (10.0, 20.0, 30.0)
    ]
    found = figures(jobs)
    assert found[OURS]["mean"] == 20.0
    assert [found[ALL][name] for name in ("least", "median", "most")] == [0.1, 0.2, 0.3]
    assert found[PACKED]["median"] == 0.4


@pytest.mark.parametrize(("ours", "said"), [(25.0, "4 members"), (26.0, "MISSED")])
def test_missed_target_is_printed(ours: float, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    cause = dict.fromkeys(downtime_gang.CAUSES, 0.0)
    job = Loss({rule: cause | {"boot": ours if rule == OURS else 100.0} for rule in (OURS, ALL, PACKED)})
    downtime_gang.show({4: figures([job])})
    assert capsys.readouterr().out.splitlines()[-1] == f"at most 25% of tearing all down: {said}"
