"""Where the repository's own files are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "support" / "jobs"
EXAMPLES = ROOT / "examples"
