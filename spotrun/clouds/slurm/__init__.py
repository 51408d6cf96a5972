"""Slurm: the job queue of many clusters at universities and companies."""

from __future__ import annotations
