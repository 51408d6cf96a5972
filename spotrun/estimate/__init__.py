"""
Estimates the cost of a training on several clouds and machines, from given prices and speeds. Rents nothing. Pure.
"""
