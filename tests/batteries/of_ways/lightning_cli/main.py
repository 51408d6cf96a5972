"""
A project whose `main` is LightningCLI: model and data by the names of their classes, everything else in `config.yaml`.

Stands for: projects that are started by `python main.py fit --config config.yaml`.
"""

from lightning.pytorch.cli import LightningCLI

if __name__ == "__main__":
    LightningCLI()
