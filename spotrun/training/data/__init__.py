"""Gives data an exact order, and exact random numbers for everything that is drawn while data is read."""
