"""
Exact resume for trainings whose script owns the loop, including those with Fabric and accelerate: `from spotrun import
Loop`.
"""
