"""Records an exact trace of a training, batch by batch, for `spotrun verify-resume`."""
