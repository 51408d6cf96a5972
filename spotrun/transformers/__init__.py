"""
Exact resume for scripts that use the Trainer of transformers, behind the port in spotrun/training/framework.py. A
script needs no extra line: autoload calls `entry.install` once transformers.trainer is imported. Importing this package
costs nothing.
"""
