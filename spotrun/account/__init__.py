"""The cost of a run, in dollars and in time: pure folds of its ledger."""
