"""
Compute Engine's instances on this machine: see tests/support/machines.py. What happens to them is what the project of
tests/support/gce_project.py says; they themselves can only power off.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from spotrun.clock import ScaledClock
from tests.support.gce_catalog import PROJECT
from tests.support.gce_metadata import GceMetadata
from tests.support.gce_vm import Vm
from tests.support.machines import Machine

HOSTS = ("metadata.google.internal",)


class GceMachine(Machine):
    """One instance. Its metadata server is its own, from its start to its end."""

    def __init__(self, disk: Path, metadata: GceMetadata, clock: ScaledClock, ended: Callable[[], None]) -> None:
        self.metadata = metadata
        host = metadata.host
        found_by = {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host}
        super().__init__(disk, clock, ended, int(host.rpartition(":")[2]), HOSTS, found_by)

    def power_off(self) -> None:
        super().power_off()
        self.metadata.close()


class GceMachines:
    """
    Executes the startup-scripts of a project's instances. `image` is the environment in which they are, `tools` are
    programs of the image. `token_of` gives each service account's address a token. `starts` is told an instance's
    startup-script, and `powers_off` its name. Each has its disk in the folder `disks`.
    """

    def __init__(self, clock: ScaledClock, token_of: Callable[[str], str]) -> None:
        self.image: Mapping[str, str] = {}
        self.tools: Mapping[str, str] = {}
        self.starts: Callable[[str], None] = lambda _script: None
        self.powers_off: Callable[[str], None] = lambda _name: None
        self._clock = clock
        self._token_of = token_of
        self._machines: dict[str, GceMachine] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.disks = Path(self._folder.name)

    def close(self) -> None:
        for name in [*self._machines]:
            self._end(name)
        self._folder.cleanup()

    def of(self, name: str) -> GceMachine:
        return self._machines[name]

    # -- what the project tells ----------------------------------------------------------------------------------

    def started(self, vm: Vm) -> None:
        script = vm.metadata["startup-script"]
        self.starts(script)
        account = vm.account or ""
        metadata = GceMetadata(vm.name, vm.zone, account, self._token_of(account))
        metadata.change("project/project-id", PROJECT)
        machine = GceMachine(self.disks / vm.name, metadata, self._clock, lambda: self._powered_off(vm.name))
        self._machines[vm.name] = machine
        machine.start(script.encode(), self.image, self.tools)

    def noticed(self, vm: Vm) -> None:
        self._machines[vm.name].metadata.preempt()

    def stopping(self, vm: Vm) -> None:
        self._machines[vm.name].shut_down()

    def ended(self, vm: Vm) -> None:
        self._end(vm.name)

    def _end(self, name: str) -> None:
        """Once: who has powered itself off hears of its end from the project."""
        machine = self._machines.pop(name, None)
        if machine is not None:
            machine.power_off()

    def _powered_off(self, name: str) -> None:
        with contextlib.suppress(KeyError):  # it was deleted meanwhile
            self.powers_off(name)
