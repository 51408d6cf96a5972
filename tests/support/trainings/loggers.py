"""Loggers that may be slow, and what readers of their files see."""

from __future__ import annotations

import os
import time
from pathlib import Path


def logger(pl, folder: Path, name: str):
    if name != "MLFlowLogger":
        return getattr(pl.loggers, name)(folder, name=name)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # 3.7 and later ask for that
    return pl.loggers.MLFlowLogger(save_dir=folder / name)


def slow_down(writer, seconds: float) -> None:
    """Each event reaches its file this many seconds after it was logged."""
    write = writer.write_event
    writer.write_event = lambda self, event: (time.sleep(seconds), write(self, event))


def logged(folder: Path) -> dict:
    """What readers of the loggers' files see: CSV rows, TensorBoard's scalars in the order of steps, MLflow's runs."""
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.csv")}
    for version in {path.parent for path in folder.rglob("events.out.*")}:
        points = [point for path in version.glob("events.out.*") for point in scalars(path.read_bytes())]
        found[version.relative_to(folder).as_posix()] = sorted(points)
    runs = (metrics for metrics in folder.glob("MLFlowLogger/*/*/metrics") if any(metrics.iterdir()))
    for run, metrics in enumerate(runs):
        for path in metrics.iterdir():
            found[f"MLflow {run} {path.name}"] = [line.split()[1:3] for line in path.read_text().splitlines()]
    return found


def scalars(records: bytes):
    """(tag, step, value) of an event file: u64 length | crc | event | crc, repeated."""
    from tensorboardX.proto.event_pb2 import Event

    while records:
        size = int.from_bytes(records[:8], "little")
        event = Event.FromString(records[12 : 12 + size])
        records = records[16 + size :]
        yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)
