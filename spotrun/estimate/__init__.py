"""Estimates what a training costs at several places, from stated prices and speeds. Rents nothing. Pure."""
