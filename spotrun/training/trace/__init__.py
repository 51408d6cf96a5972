"""Traces a training exactly, batch by batch, for `spotrun verify-resume`."""
