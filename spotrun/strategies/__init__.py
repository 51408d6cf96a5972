"""Strategies that decide where a job runs next: pure rules, both spotrun's own and those of other tools."""
