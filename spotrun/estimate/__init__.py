"""Estimates the cost of a training at several places, by named prices and speeds. Nothing is rented. Pure."""
