"""
Strategies that decide where a job runs next: spotrun's own, and the rules of other tools for comparison. All are pure
functions.
"""
