"""Whether a machine, a store and an account can carry a run, checked before anything is billed."""
