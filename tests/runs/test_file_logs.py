"""The files of a logger as part of a snapshot, whatever the metrics are called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spotrun.folder.work_files import MARK
from spotrun.training.log_files import text_logs

if TYPE_CHECKING:
    from pytorch_lightning.loggers import CSVLogger


def logged_by(logger: CSVLogger, name: str, *steps: int) -> None:
    for step in steps:
        logger.log_metrics({name: step / 10, "loss": 1.0}, step)
    logger.save()


@pytest.mark.parametrize("name", ["mAP@[.5,.95]", 'the "best"', "accuracy"])
def test_a_resumed_csv_goes_on_in_its_own_columns(tmp_path: Path, name: str) -> None:
    from pytorch_lightning.loggers import CSVLogger  # four seconds, which nobody else should wait for

    straight = CSVLogger(tmp_path / "straight")
    logged_by(straight, name, 0, 1)
    first, second = CSVLogger(tmp_path / "killed"), CSVLogger(tmp_path / "on another machine")
    text_logs.begin([first], "0123456789")
    logged_by(first, name, 0)
    saved = text_logs.dump([first])
    text_logs.continue_run([second], saved)
    text_logs.load([second], saved)
    logged_by(second, name, 1)
    assert Path(second.log_dir, text_logs.CSV).read_text() == Path(straight.log_dir, text_logs.CSV).read_text()
    assert Path(second.log_dir, MARK).read_text() == "0123456789"
