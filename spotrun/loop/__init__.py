"""
Exact resume for scripts with their own training loop, including Fabric and accelerate: `from spotrun import Loop`.
"""
