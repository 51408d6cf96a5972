"""Checks that a machine, a store and an account are ready for a run, before anything is billed."""
