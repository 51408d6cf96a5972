"""Holds sitecustomize.py, which the user's own Python finds by its name and imports when it starts on an instance."""

from pathlib import Path

FOLDER = Path(__file__).parent
"""The folder to put first in PYTHONPATH."""
SEED_VARIABLE = "SPOTRUN_SEED"
"""The seed of a run's programs, a whole number. If it is not set, no generator is seeded."""
STARTED_VARIABLE = "SPOTRUN_STARTED_AT"
"""Creation time of the run, in ISO 8601 with its zone, for names that contain a date."""
