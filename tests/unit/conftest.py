"""What the tests that call commands in their own process have in common."""

from __future__ import annotations

from tests.support.called_spotrun import runs as runs
from tests.support.called_spotrun import spotrun as spotrun
