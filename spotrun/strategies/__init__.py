"""Strategies that decide where a job runs next: pure rules, spotrun's own and those of others."""
