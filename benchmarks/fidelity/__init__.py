"""
Measures how far the tick model of `spotrun simulate` and `spotrun plan` is from the runner itself.

The ticks decide once a tick, lose instances between ticks, and pay a whole changeover at every start. The runner
decides every two seconds, requests spot to learn whether there is some, receives notices, has a standby boot next to an
instance that still trains, saves, and does again what was not saved. Here it runs with the real ledger, policy and
agent rules in simulated worlds (tests/support/world), in the same markets as the ticks.
"""
