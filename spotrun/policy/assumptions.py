"""What is believed about a run before it was measured. Every assumed figure of a deadline is here, and nowhere else."""

from __future__ import annotations

from datetime import timedelta

CHANGEOVER = timedelta(minutes=6)
"""From asking for an instance to its first new step: boot, set-up and restore."""
CHANGEOVER_DOUBT = 1.2
"""The next changeover may take this many times the longest that was measured."""
COMMIT = timedelta(seconds=60)
"""From a snapshot to its commit, before one was made."""
WARM_RESTORE = timedelta(seconds=5)
"""From the takeover of a standby, with its imports done and the checkpoint fetched, to its first new step."""
NOTICED = 0.9
"""The share of all losses that come with a useful notice, before any was seen."""
STALL = timedelta(seconds=1)
UNPACK_SHARE = 0.1
"""
The share of a set-up's time that a later instance of the run needs to fetch and unpack what the first has made
(spotrun/folder/setup_cache.py). 353 MB that took 125 s to make took 12 s, and 6 s in a second run
(benchmarks/setups.py, on two cores).
"""
TRIAL = timedelta(minutes=3)
"""From the first step on a kind of instance until it is known how fast it trains: three stretches between commits."""
WORK_DOUBT = 0.25
"""What a first measurement of the pace, or the user's own figure, may be wrong by, as a share of the work left."""
WORK_DOUBT_MIN = 0.03
"""No less, however even the pace was: an epoch may end with more validation than the last one did."""
STEPS_MIN = 5
"""Fewer measured steps say nothing about the pace."""
STRETCHES_MIN = 3
"""Fewer stretches between checkpoints do not show how much the pace varies."""
