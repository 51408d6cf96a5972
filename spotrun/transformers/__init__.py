"""
Exact resume for scripts that train with the Trainer of transformers, behind the port spotrun/training/framework.py. A
script needs no line for it: autoload calls `entry.install` after transformers.trainer was imported. An import of this
package costs nothing.
"""
