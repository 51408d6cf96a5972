"""
Figures that are assumed for a run until the run has measured them. Every assumption that affects whether a run meets
its deadline is in this module.
"""

from __future__ import annotations

from datetime import timedelta

CHANGEOVER = timedelta(minutes=6)
"""Time from the request for an instance to its first new step: boot, set-up and restore."""
CHANGEOVER_DOUBT = 1.2
"""
A safety factor: the next changeover is assumed to take at most this many times as long as the longest one measured.
"""
COMMIT = timedelta(seconds=60)
"""Time from a snapshot to its commit, assumed until the run has made a commit."""
WARM_RESTORE = timedelta(seconds=5)
"""
Time from a standby's takeover to its first new step. At the takeover, the standby has already done its imports and
fetched the checkpoint.
"""
NOTICED = 0.9
"""Share of losses that come with a useful notice, assumed until the run has had a loss."""
STALL = timedelta(seconds=1)
UNPACK_SHARE = 0.1
"""
Time that a later instance of the run needs to fetch and unpack the setup cache, as a share of the set-up time on the
first instance (spotrun/folder/setup_cache.py). In benchmarks/setups.py on two cores, a set-up of 353 MB took 125 s to
make, and 12 s to unpack (6 s in a second run).
"""
TRIAL = timedelta(minutes=3)
"""
Time from the first step on a kind of instance until the speed of this kind is known. For that, three stretches between
commits have to be measured.
"""
WORK_DOUBT = 0.25
"""
Possible error of the estimate of the remaining work, as a share of this work. It is used if the pace was measured only
once, or if the user has given the estimate.
"""
WORK_DOUBT_MIN = 0.03
"""
Smallest possible error that is assumed for the estimate of the work left, even if all steps so far have taken equally
long. It is not 0, because the validation at the end of the next epoch may take longer than the last one.
"""
STEPS_MIN = 5
"""Minimum number of measured steps from which a pace is computed."""
STRETCHES_MIN = 3
"""Minimum number of stretches between checkpoints from which the variation of the pace is computed."""
