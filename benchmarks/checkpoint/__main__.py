"""
Measures the cost of a checkpoint: spotrun and its peers, next to the limits of the same machine in the same run.

    make checkpoint-benchmark        or        python -m benchmarks.checkpoint --models resnet50,gpt --json OUT

Each variant trains the same model in a process of its own and checkpoints every 20 steps to the same S3 server. Then
training is paused and the last checkpoint is made durable; then a new process restores it. Each round does so with all
variants, in a random order, along with a training without checkpoints. Nothing else should run on the machine
meanwhile: the server, the trainer and the uploading process share its cores.
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

from benchmarks.checkpoint.figures import Limits, Row, Summary, as_json, row, summary
from benchmarks.checkpoint.measurement import Measurement, measure_peer, read
from benchmarks.checkpoint.ours import measure_ours
from benchmarks.checkpoint.places import Place, is_bucket, places
from benchmarks.checkpoint.plan import BURDENS, PLANS, ROUNDS_MIN, VARIANTS, Burden, blocks, room_gb
from benchmarks.checkpoint.processes import PEERS, Failed, started, wait_well
from benchmarks.checkpoint.table import table

WIDTH = 150
"""Columns of a table that goes into a file."""


class Refused(Exception):
    """A command names something that is not there."""


def main(
    models: Annotated[str, typer.Option(help=f"Of {', '.join(PLANS)}.")] = "resnet50,gpt",
    variants: Annotated[str, typer.Option(help=f"Of {', '.join(VARIANTS)}.")] = ",".join(VARIANTS),
    rounds: Annotated[
        int, typer.Option(min=1, help=f"With fewer than {ROUNDS_MIN}, each effect is noise.")
    ] = ROUNDS_MIN,
    seed: Annotated[int, typer.Option(help="Of the order within each round.")] = 1,
    store: Annotated[str, typer.Option(help="s3://bucket/prefix or a folder; if not given, a SeaweedFS here.")] = "",
    json_to: Annotated[Path | None, typer.Option("--json", help="Write the figures there too.")] = None,
) -> None:
    try:
        wanted_models, wanted = _known(models, PLANS, "model"), _known(variants, VARIANTS, "variant")
        if is_bucket(store):
            _check_peers(wanted)
    except Refused as error:
        sys.exit(f"error: {error}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # without this, the rest would train on forever
    rows: list[Row] = []
    try:
        for one in _rows(wanted_models, wanted, store, rounds, seed):
            rows.append(one)  # noqa: PERF402  what there is must be kept when the next one fails
    except Failed as failure:
        sys.exit(f"error: {failure}")
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:  # show the results so far, after a Ctrl-C too
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        found = _summaries(rows, wanted)
        for model in dict.fromkeys(one.row.model for one in found):
            console.print(table([one for one in found if one.row.model == model]))
        if json_to is not None:
            json_to.write_text(json.dumps(as_json(found), indent=1))


def _summaries(rows: list[Row], variants: list[str]) -> list[Summary]:
    models = dict.fromkeys(one.model for one in rows)
    each = ([one for one in rows if (one.model, one.variant) == (m, v)] for m in models for v in variants)
    return [summary(same) for same in each if same]


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


def _rows(models: list[str], variants: list[str], store: str, rounds: int, seed: int) -> Iterator[Row]:
    room = room_gb(models, variants)
    with tempfile.TemporaryDirectory(prefix="spotrun-checkpoint-") as name, places(store, room) as place:
        for model in models:
            yield from Bench(model, Path(name) / model, place).rows(blocks(variants, rounds, seed))


@dataclass(frozen=True)
class Bench:
    """One model, in a folder of its own."""

    model: str
    folder: Path
    place: Place

    def rows(self, rounds: list[list[str]]) -> Iterator[Row]:
        """Yield the rows. Each variant is compared with measurements of the same round."""
        state_bytes = self._measure("none", "untimed").state_bytes
        for number, variants in enumerate(rounds):
            limits = self._limits(state_bytes)
            found: dict[str, Measurement] = {}
            failed: Failed | None = None
            try:
                for one in variants:
                    found[one] = self._measure(one, f"{number}-{one}", state_bytes)
            except Failed as failure:  # what was measured before it still counts
                failed = failure
            for variant in found if "none" in found else ():
                yield row(self.model, variant, found[variant], found["none"], limits, found.get("ours"))
            if failed is not None:
                raise failed

    def _measure(self, variant: str, folder_name: str, touched_bytes: int = 0) -> Measurement:
        self._say(folder_name)
        folder = self.folder / folder_name
        folder.mkdir(parents=True)
        with self.place() as uri:
            if touched_bytes:
                self._run("touch", ["--bytes", str(touched_bytes), "--to", uri], folder / "touch.log")
            if variant.startswith("ours"):
                return measure_ours(self.model, folder, uri, BURDENS.get(variant, Burden()))
            return measure_peer(self.model, variant, folder, uri)

    def _limits(self, state_bytes: int) -> Limits:
        self._say("limits")
        out = self.folder / "limits.json"
        with self.place() as uri:
            words = ["--bytes", str(state_bytes), "--to", uri, "--out", str(out)]
            self._run("limits", words, self.folder / "limits.log")
        return Limits(**read(out))

    def _run(self, module: str, words: list[str], log: Path) -> None:
        with started(f"benchmarks.checkpoint.{module}", words, log, peers=True) as process:
            wait_well(process, log)

    def _say(self, what: str) -> None:
        print(f"{self.model}: {what} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
