"""
Rented machines on this one: each runs its start script as a process tree, with a disk and a metadata service of its
own.

What would touch the host is shimmed: `systemd-run` starts processes and timers of the machine, and every command that
ends a machine ends this one alone. Where this user may have them, network and processes are in namespaces of their own,
and the metadata service is where the cloud has it; elsewhere it is found through variables that the SDKs know.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from spotrun.clock import ScaledClock
from spotrun.clouds.local import processes
from tests.support.own_namespaces import METADATA, Namespaces, Way, permitted

_LOCAL = re.compile(r"http://127\.0\.0\.1:(\d+)")
MARK = "RENTED_MACHINE"
"""The variable that all processes of a machine carry, with its disk."""
ENDS_A_MACHINE = ("shutdown", "poweroff", "halt", "reboot")
LATE_TEE = """#!/bin/bash
text="$(cat)"
/usr/bin/tee "$@" <<<"$text"
"""
"""In place of `tee`: it writes when there is no more to come."""
_SYSTEMCTL = f"""#!/bin/bash
ends='{"|".join((*ENDS_A_MACHINE, "init", "telinit"))}'
if [[ "${{0##*/}}" =~ ^($ends)$ || "${{1:-}}" =~ ^($ends)$ ]]; then
    touch "$RENTED_MACHINE/powered-off"
    exit
fi
echo "systemctl $*: not in this rehearsal" >&2
exit 1
"""
"""As on a real machine, one program under many names."""
_SYSTEMD_RUN = """#!/bin/bash
given=()
while [[ "$1" == --* ]]; do
    case "$1" in
        --on-boot=*) after="${1#--on-boot=}" ;;
        --property=ExecStopPost=*) stop_post="${1#--property=ExecStopPost=}" ;;
        --property=KillMode=*) kill_mode="${1#--property=KillMode=}" ;;
        --property=TimeoutStopSec=*) stop_s="${1#--property=TimeoutStopSec=}" ;;
        --setenv=*=*) given+=("${1#--setenv=}") ;;
        --setenv=*) name="${1#--setenv=}"; given+=("$name=${!name}") ;;
    esac
    shift
done
real() {
    awk "BEGIN { print $1 / $SPOTRUN_TIME_SCALE }"
}
stopped() {
    while [[ ! -e "$RENTED_MACHINE/signalled" ]]; do /bin/sleep 0.1; done
    kill -TERM "$1"
    /bin/sleep "$(real "$stop_s")"
    kill -KILL "$1" 2>/dev/null
}
if [[ -n "${after:-}" ]]; then
    ( /bin/sleep "$(real "${after%s}")"; "$@" ) &
    exit
fi
mapfile -t -d "" kept <"$RENTED_MACHINE/environment"
{
    env -i "${kept[@]}" "${given[@]}" "$@" &
    main=$!
    [[ "${kill_mode:-}" != mixed ]] || stopped "$main" &
    wait "$main"
    ${stop_post:-true}
} >>"$RENTED_MACHINE/console.log" 2>&1 &
"""
"""A service has the variables of the machine and those that it is given. At a shutdown its first process is told."""


class Machine:
    """
    `metadata` is the port of its metadata service; it is called `hosts` inside, and `found_by` are variables for where
    there are no namespaces. `ended` is called once, from a thread of its own, when the machine has powered itself off.
    """

    def __init__(
        self,
        disk: Path,
        clock: ScaledClock,
        ended: Callable[[], None],
        metadata: int,
        hosts: tuple[str, ...] = (),
        found_by: Mapping[str, str] = {},
    ) -> None:
        self.disk = disk
        self._clock = clock
        self._metadata, self._hosts, self._found_by = metadata, hosts, found_by
        self._ended = ended
        self._off = threading.Event()
        self._timers: list[threading.Timer] = []
        self._namespaces = Namespaces() if permitted() else None
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def start(self, script: bytes, image: Mapping[str, str], tools: Mapping[str, str]) -> None:
        """`image` is its environment; `tools` are scripts that stand before all others on its path."""
        shims = {"systemd-run": _SYSTEMD_RUN, **dict.fromkeys(("systemctl", *ENDS_A_MACHINE), _SYSTEMCTL)}
        tools_folder = self.disk / "tools"
        tools_folder.mkdir(parents=True, exist_ok=True)
        for name, text in {**shims, **tools}.items():
            (tools_folder / name).write_text(text)
            (tools_folder / name).chmod(0o755)
        console = self.disk / "console"
        console.write_bytes(script)
        environment = {
            **image,
            **self._clock.environment(),
            "PATH": f"{tools_folder}:{image['PATH']}",
            "SPOTRUN_INSTANCE_DIR": str(self.disk / "spotrun"),
            MARK: str(self.disk),
        }
        if self._namespaces is None:
            environment |= self._found_by
        (self.disk / "environment").write_text("".join(f"{name}={text}\0" for name, text in environment.items()))
        self._watcher.start()
        if self._namespaces is None:
            self._run_beside_the_host(console, environment)
        else:
            self._namespaces.start(console, tools_folder, environment, [*self._ways(image)], self._hosts)

    def _ways(self, image: Mapping[str, str]) -> Iterator[Way]:
        """To its metadata, and to what the image names by addresses of this machine."""
        yield Way(METADATA, ("127.0.0.1", self._metadata))
        for port in sorted({int(found) for text in image.values() for found in _LOCAL.findall(text)}):
            yield Way(("127.0.0.1", port), ("127.0.0.1", port))

    def _run_beside_the_host(self, script: Path, environment: Mapping[str, str]) -> None:
        with (self.disk / "console.log").open("ab") as console:
            subprocess.Popen(
                ["bash", str(script)],
                cwd=self.disk,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def shut_down(self) -> None:
        """The power button: its services are stopped, and when they are, it powers itself off."""
        (self.disk / "signalled").touch()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """In so many seconds of run time, unless it is off by then."""
        timer = threading.Timer(seconds / self._clock.scale, lambda: None if self._off.is_set() else act())
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def power_off(self) -> None:
        """At once, from outside."""
        self._off.set()
        for timer in self._timers:
            timer.cancel()
        assert processes.kill_all(partial(processes.carrying, MARK, str(self.disk)))
        if self._namespaces is not None:
            self._namespaces.close()

    def _watch(self) -> None:
        while not self._off.wait(0.02):
            if (self.disk / "powered-off").exists():
                self.power_off()
                self._ended()
