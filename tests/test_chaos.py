"""Battery T4 in small: 20 real trainings on a real S3 server, each through 5 to 20 SIGKILLs. `make chaos` runs 200."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import chaos
from tests.object_stores import RunningServer

RUNS = 20


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> chaos.Straight:
    """What nothing disturbed."""
    return chaos.undisturbed(tmp_path_factory.mktemp("calm") / "site")


@pytest.mark.slow
@pytest.mark.timeout(chaos.RUN_WITHIN_S)
@pytest.mark.parametrize("seed", range(1, RUNS + 1))
def test_a_training_through_kills_is_the_one_without(
    seed: int,
    wanted: chaos.Straight,
    servers: Callable[[str], RunningServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = servers("s3")
    server.reach(monkeypatch)
    outcome = chaos.one(tmp_path / "site", server.new_prefix(), seed, wanted)
    assert outcome.wrong == ()
    assert len(outcome.kills) >= chaos.KILLS_MIN
