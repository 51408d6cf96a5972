"""
The code that the agent and the trainer share. It uses only the standard library, because a trainer's Python environment
may have no other package.
"""
