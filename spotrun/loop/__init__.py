"""Exact resume for scripts that own their training loop, also with Fabric or accelerate: `from spotrun import Loop`."""
