"""Clouds behind one port: each package is one cloud's driver, with its prices, checks and nights."""
