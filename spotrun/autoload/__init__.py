"""
Makes the user's own Python run spotrun's hooks. Python imports the module `sitecustomize` when it starts; on an
instance, PYTHONPATH leads it to the one in this folder.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
"""The folder to put first in PYTHONPATH."""
SEED_VARIABLE = "SPOTRUN_SEED"
"""The seed of a run's programs, a whole number. Without this variable, no generator is seeded."""
STARTED_VARIABLE = "SPOTRUN_STARTED_AT"
"""Creation time of the run, in ISO 8601 with a time zone, for names that contain a date."""
