"""
A project of configuration groups: everything is made by `instantiate`, in a folder that Hydra names by the time.

Stands for: templates of Lightning with Hydra.
"""

import json
from pathlib import Path

import hydra
import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf


@hydra.main(version_base=None, config_path="configs", config_name="train")
def main(cfg: DictConfig) -> float:
    pl.seed_everything(cfg.seed, workers=True)
    folder = Path(cfg.paths.output_dir)
    datamodule = instantiate(cfg.data)
    model = instantiate(cfg.model)
    callbacks = [instantiate(each) for each in cfg.callbacks.values()]
    logger = pl.loggers.CSVLogger(str(folder), name="csv")
    logger.log_hyperparams(OmegaConf.to_container(cfg.model, resolve=True))
    trainer = instantiate(cfg.trainer, callbacks=callbacks, logger=logger)
    trainer.fit(model, datamodule)
    best = callbacks[0]
    tested = trainer.test(model, datamodule, ckpt_path="best")
    torch.save(model.state_dict(), folder / "model.pt")
    found = {"best": Path(best.best_model_path).name, "score": float(best.best_model_score), "test": tested}
    (folder / "result.json").write_text(json.dumps(found))
    return found["score"]


if __name__ == "__main__":
    main()
