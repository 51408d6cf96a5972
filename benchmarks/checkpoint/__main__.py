"""
What a checkpoint costs: spotrun and its peers, beside the limits of the same machine in the same run.

    make checkpoint-benchmark        or        python -m benchmarks.checkpoint --models resnet50,gpt --json OUT

Each variant trains the same model in a process of its own and checkpoints every 20 steps to the same S3 server. Then
training is paused and the last checkpoint is made durable; then a new process restores it. Nothing else should run on
the machine meanwhile: the server, the trainer and whoever uploads share its cores.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.checkpoint.figures import Limits, Row, as_json, row
from benchmarks.checkpoint.measurement import Measurement, measure_peer, read
from benchmarks.checkpoint.ours import measure_ours
from benchmarks.checkpoint.places import Place, places
from benchmarks.checkpoint.plan import PLANS, VARIANTS
from benchmarks.checkpoint.processes import PEERS, Failed, started, wait_well
from benchmarks.checkpoint.table import table

WIDTH = 150
"""Of a table that goes into a file."""


class Refused(Exception):
    """Of a command that asks for what is not there."""


def main(
    models: Annotated[str, typer.Option(help=f"Of {', '.join(PLANS)}.")] = "resnet50,gpt",
    variants: Annotated[str, typer.Option(help=f"Of {', '.join(VARIANTS)}.")] = ",".join(VARIANTS),
    store: Annotated[str, typer.Option(help="s3://bucket/prefix; a SeaweedFS on this machine if not given.")] = "",
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the figures there too.")] = None,
) -> None:
    try:
        wanted_models, wanted = _known(models, PLANS, "model"), _known(variants, VARIANTS, "variant")
        _check_peers(wanted)
    except Refused as error:
        sys.exit(f"error: {error}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what would be left trains on, and for ever
    rows: list[Row] = []
    try:
        rows.extend(_rows(wanted_models, wanted, store))
    except Failed as failure:
        sys.exit(f"error: {failure}")
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:  # what there is, after a Ctrl-C too
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        for model in dict.fromkeys(one.model for one in rows):
            console.print(table([one for one in rows if one.model == model]))
        if json_to is not None:
            json_to.write_text(json.dumps(as_json(rows), indent=1))


def _known(names: str, known: dict[str, object], what: str) -> list[str]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise Refused(f"no {what} {', '.join(unknown) or 'was named'}\n  try: --{what}s {','.join(known)}")
    return wanted


def _check_peers(variants: list[str]) -> None:
    absent = {name for variant in variants for name in VARIANTS[variant] if not _is_there(name)}
    if absent:
        needing = [variant for variant in variants if not absent.isdisjoint(VARIANTS[variant])]
        raise Refused(f"{', '.join(needing)}: {', '.join(sorted(absent))} not installed\n  try: make .peers")


def _is_there(package: str) -> bool:
    return PathFinder.find_spec(package, [str(PEERS)]) is not None


def _rows(models: list[str], variants: list[str], store: str) -> Iterator[Row]:
    room_gb = max(PLANS[model].store_gb for model in models)
    with tempfile.TemporaryDirectory(prefix="spotrun-checkpoint-") as name, places(store, room_gb) as place:
        for model in models:
            yield from Bench(model, Path(name) / model, place).rows(variants)


@dataclass(frozen=True)
class Bench:
    """One model, in a folder of its own."""

    model: str
    folder: Path
    place: Place

    def rows(self, variants: list[str]) -> Iterator[Row]:
        """Each variant is compared with the training without checkpoints that was just before it."""
        none = self._measure("none", "none-0")
        limits = self._limits(none.state_bytes)
        if "none" in variants:
            yield row(self.model, "none", none, none, limits)
        for number, variant in enumerate(one for one in variants if one != "none"):
            none = none if number == 0 else self._measure("none", f"none-{number}")
            yield row(self.model, variant, self._measure(variant, variant), none, limits)

    def _measure(self, variant: str, folder_name: str) -> Measurement:
        self._say(variant)
        folder = self.folder / folder_name
        folder.mkdir(parents=True)
        with self.place() as uri:
            if variant == "ours":
                return measure_ours(self.model, folder, uri)
            return measure_peer(self.model, variant, folder, uri)

    def _limits(self, state_bytes: int) -> Limits:
        self._say("limits")
        out, log = self.folder / "limits.json", self.folder / "limits.log"
        with self.place() as uri:
            words = ["--bytes", str(state_bytes), "--to", uri, "--out", str(out)]
            with started("benchmarks.checkpoint.limits", words, log, peers=True) as process:
                wait_well(process, log)
        return Limits(**read(out))

    def _say(self, what: str) -> None:
        print(f"{self.model}: {what} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
