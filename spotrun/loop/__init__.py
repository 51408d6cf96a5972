"""
Exact resume for scripts that write their own training loop, also with Fabric or accelerate: `from spotrun import Loop`.
"""
