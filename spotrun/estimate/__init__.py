"""Estimates the cost of a training at several places from stated prices and speeds. Nothing is rented. Pure."""
