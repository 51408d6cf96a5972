"""Checks whether a machine, a store and an account can carry a run, before anything is billed."""
