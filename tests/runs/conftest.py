"""What the trainings of this room have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_bench import AgentRun, Start
from tests.support.called_spotrun import spotrun as spotrun
from tests.support.trainings.trainers import Zygote
from tests.support.trainings.zygote import TRANSFORMERS


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One for all files: what it imports takes five seconds, and no test changes what it does."""
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), TRANSFORMERS)
    yield zygote
    zygote.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begins runs of real agents, and ends them."""
    runs: list[AgentRun] = []

    def make(job: dict[str, Any] | None = None, **spec: Any) -> AgentRun:
        runs.append(AgentRun(tmp_path, job, **spec))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
