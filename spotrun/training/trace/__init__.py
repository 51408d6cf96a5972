"""Traces what a training did, batch by batch and exactly, for `spotrun verify-resume`."""
