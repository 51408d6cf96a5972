"""Instances of one run of which each gets as far as its set-up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.agent.agent_context import AgentContext, Assignment
from spotrun.agent.setup import prepare
from spotrun.folder import setup_cache
from spotrun.offering import CapacityType
from spotrun.run import events as ev
from tests.support.agent_bench import UID, AgentRun
from tests.support.eventually import eventually
from tests.support.histories import intended, offering

SETUP = """
set -e
echo once >> $COUNTER
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir $site/addon
echo 'WORD = "from the set-up"' > $site/addon/__init__.py
printf '#!%s\\nimport addon; print("tool", addon.WORD)\\n' $VIRTUAL_ENV/bin/python > $VIRTUAL_ENV/bin/tool
chmod +x $VIRTUAL_ENV/bin/tool
mkdir -p built/empty
ln -s $PWD/built link
echo changed > given.txt
rm superfluous.txt
"""
FILES = {"given.txt": "as given", "superfluous.txt": "x"}


class Machines:
    """Instances of one run of which each gets as far as its set-up, in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        self.counter = folder / "counter"
        envs = {"COUNTER": str(self.counter), **spec.pop("envs", {})}
        self.run = AgentRun(folder, setup=spec.pop("setup", SETUP), envs=envs, files=FILES, **spec)
        for name, text in self.run.clock.environment().items():
            monkeypatch.setenv(name, text)
        self._folder = folder
        self.nodes: list[AgentContext] = []

    @property
    def times(self) -> int:
        """How often the command has run."""
        return len(self.counter.read_text().splitlines()) if self.counter.exists() else 0

    def another(
        self, cloud: str = "local", accelerators: str = "", capacity_type: CapacityType = CapacityType.SPOT
    ) -> AgentContext:
        if (pending := self.run.state.pending) is not None:
            self.run.write(ev.LaunchClosed(launch=pending, cause=ev.Cause.CAPACITY))
        asked = replace(offering(capacity_type, accelerators=accelerators), cloud=cloud)
        launch = self.run.write(intended(asked, self.run.clock.now(), "1"))
        folder = self._folder / f"instance-{launch}"
        folder.mkdir()
        assignment = Assignment(
            run_uri=self.run.store.uri,
            run_uid=UID,
            launch=launch,
            instance_id=f"i-{os.getpid()}-{launch}",
            folder=folder,
        )
        self.nodes.append(AgentContext.open(assignment))
        return self.nodes[-1]

    def trains_for_a_while(self, node: AgentContext) -> None:
        """An attempt of the newest instance, which has set up."""
        node_id, launch = node.assignment.instance_id, node.assignment.launch
        begun = ev.AttemptStarted(launch=launch, instance_id=node_id, booted_at=node.booted_at, setup=prepare(node))
        attempt = self.run.write(begun)
        self.run.write(ev.AttemptEnded(attempt=attempt, cause=ev.Cause.EXTERNAL, last_step=0))

    def stored(self) -> list[str]:
        return [found.key for found in self.run.store.list(f"{setup_cache.FOLDER}/")]

    def one_that_packs(self, **offered: str) -> AgentContext:
        """An instance that has set up, once its packed set-up is in the store."""
        node = self.another(**offered)
        assert prepare(node).how == "run"
        eventually(lambda: "is stored" in log(node))
        return node


def log(node: AgentContext) -> str:
    return node.console.path.read_text()
