"""Exact resume for trainings whose script owns the loop, with Fabric and accelerate too: `from spotrun import Loop`."""
