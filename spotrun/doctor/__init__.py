"""Checks a machine, a store and an account for a run, before anything is billed."""
