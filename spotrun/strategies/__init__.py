"""Strategies that decide where a job should run next: pure rules, ours and those of others."""
