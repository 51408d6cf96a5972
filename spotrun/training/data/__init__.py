"""Gives data an exact order, and exact random numbers that are drawn with it."""
