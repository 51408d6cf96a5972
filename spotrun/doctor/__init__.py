"""Whether a machine, a store and an account can carry a run, found out before anything bills."""
