"""
Exact resume for scripts that train with the Trainer of transformers: it stands behind the port of
spotrun/training/framework.py. A script needs no line about it: `entry.install` is called once transformers.trainer was
imported. Importing this package costs nothing.
"""
