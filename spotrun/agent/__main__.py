"""Runs the agent by `python -m spotrun.agent`, the command with which the bootstrap starts it on an instance."""

from __future__ import annotations

import sys

from spotrun.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
