"""Slurm, the job queue of a university's or a company's cluster."""

from __future__ import annotations
