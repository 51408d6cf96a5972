"""Makes `python -m spotrun.agent` run the agent. The bootstrap of an instance uses this command."""

from __future__ import annotations

import sys

from spotrun.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
