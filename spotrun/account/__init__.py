"""The cost of a run in dollars and in time, computed only from its ledger."""
