"""Questions to a process that has imported both packages of Lightning, without a training."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

from spotrun import trainer_link


def moved_names(job: dict) -> None:
    """The private names that Lightning lacks, for both packages; and the same with one name taken away."""
    from spotrun.lightning.connectors import names

    found = {}
    for package in ("pytorch_lightning", "lightning.pytorch"):
        made_by = type("OfTheScript", (importlib.import_module(package).Trainer,), {})
        trainer = made_by(logger=False, enable_checkpointing=False)
        found[package] = names.moved(trainer)
        del trainer.fit_loop.epoch_loop._skip_next_val
        found[f"{package}, one gone"] = names.moved(trainer)
    Path(job["result"]).write_text(json.dumps(found))


def moved_in_transformers(job: dict) -> None:
    """The private names that transformers lacks; and again with two methods and a parameter taken away."""
    from spotrun.transformers import names

    module = importlib.import_module("transformers.trainer")
    found = [names.moved(module)]
    del module.Trainer.get_batch_samples
    del module.Trainer._run_epoch
    module.Trainer._evaluate = lambda self, trial: {}
    found.append(names.moved(module))
    Path(job["result"]).write_text(json.dumps(found))


def public_classes(job: dict) -> None:
    """What `from spotrun.lightning import SpotrunCallback` gives when both packages are imported."""
    import lightning.pytorch
    import pytorch_lightning

    from spotrun.lightning import SpotrunCallback
    from spotrun.lightning.factory import for_lightning, for_pytorch_lightning

    os.environ[trainer_link.AGENT] = "/somewhere"
    classes = [SpotrunCallback, *(type(factory()[0]) for factory in (for_pytorch_lightning, for_lightning))]
    bases = (pytorch_lightning.Callback, lightning.pytorch.Callback)
    Path(job["result"]).write_text(json.dumps([[issubclass(cls, base) for base in bases] for cls in classes]))
