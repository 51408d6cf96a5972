"""
The code that agent and trainer share. It uses only the standard library, because a trainer's Python environment may
lack every other package.
"""
