"""Runs the agent: `python -m spotrun.agent`, started by the bootstrap on an instance."""

from __future__ import annotations

import sys

from spotrun.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
