"""What the trainings of this room have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_bench import AgentRun, Start
from tests.support.called_spotrun import spotrun as spotrun


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
