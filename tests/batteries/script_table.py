"""
Battery: what verify-resume says of scripts as people write them, in the table of docs/exactness-measured.md.

    make battery NAME=scripts                                 all that were not measured yet, one after the other
    python -m tests.batteries.script_table --only ema         this one anew

The scripts are in tests/batteries/scripts, each after a pattern of public repositories. What was measured is kept in
build/scripts.json: who comes again goes on where the last one ended, and measures anew a script whose text has changed.
With --short-imports, a script starts in a third of the time: without the parts of torch and scipy that Lightning loads
and no script here uses. A script that differs stays in the table as it is; the battery fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.batteries.script_rows import PAGE, Script, script, scripts, verdict, with_rows
from tests.support.repository import ROOT

RESULTS = ROOT / "build" / "scripts.json"
KILLS, MANY = 4, 20
KILLED_OFTEN = ("best_early", "dqn", "ema", "gan", "own_best")
"""With the files that most scripts rely on, and with objects that only Python holds."""
SHORT_IMPORTS = ROOT / "tests" / "support" / "short_imports"
WITHIN_S = 3600


def measure(each: Script, kills: int, short_imports: bool) -> dict[str, Any]:
    """The JSON of verify-resume, or of its error."""
    with tempfile.TemporaryDirectory(prefix="spotrun-scripts-") as folder:
        command = [sys.executable, "-m", "spotrun", "verify-resume", str(each.path), "--json"]
        environment = {**os.environ, "TMPDIR": folder, "SPOTRUN_KNOWN": str(Path(folder, "known"))}
        if short_imports:
            environment["PYTHONPATH"] = str(SHORT_IMPORTS)
        done = subprocess.run(
            [*command, "--kills", str(kills)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        try:
            seen: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise AssertionError(f"{each.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}") from None
    return seen


def digest(each: Script) -> str:
    return hashlib.sha256(each.path.read_bytes()).hexdigest()


def measured() -> dict[str, dict[str, Any]]:
    """What is known of the scripts as they are now."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {each.name: known[each.name] for each in scripts() if known.get(each.name, {}).get("sha256") == digest(each)}


def keep(results: dict[str, dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    new = RESULTS.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1))
    new.replace(RESULTS)
    PAGE.write_text(with_rows(PAGE.read_text(), results))


def main(
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This script anew.")] = None,
    kills: Annotated[int | None, typer.Option(help="For each, and not as many as is said here.")] = None,
    short_imports: Annotated[bool, typer.Option("--short-imports", help="Start without what no script uses.")] = False,
) -> None:
    began, results = time.monotonic(), measured()
    wanted = [script(name) for name in only] if only else [each for each in scripts() if each.name not in results]
    for number, each in enumerate(wanted, 1):
        began_one = time.monotonic()
        count = kills or (MANY if each.name in KILLED_OFTEN else KILLS)
        seen = measure(each, count, short_imports)
        results[each.name] = {**seen, "sha256": digest(each)}
        keep(results)
        said = f"{verdict(seen)}: {seen['error']}" if "error" in seen else verdict(seen)
        print(f"{number:3}/{len(wanted)}  {each.name:22} {time.monotonic() - began_one:5.0f} s  {said}", flush=True)
    keep(results)
    print(summary(results, time.monotonic() - began))
    sys.exit(any(seen.get("first_difference") is not None or "error" in seen for seen in results.values()))


def summary(results: dict[str, dict[str, Any]], seconds: float) -> str:
    same = sum("error" not in seen and seen["first_difference"] is None for seen in results.values())
    kills = sum(len(seen.get("kills", ())) for seen in results.values())
    return f"{same} of {len(results)} scripts identical after {kills} kills; took {seconds:.0f} s"


if __name__ == "__main__":
    # Whoever starts this in the background of a script has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("COLUMNS", None)
    typer.run(main)
