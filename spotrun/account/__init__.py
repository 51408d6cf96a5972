"""What a run cost, in dollars and in time: pure folds of its ledger."""
