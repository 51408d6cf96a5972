"""The `spotrun` command: one thin file for each verb."""
