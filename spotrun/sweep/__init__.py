"""Trains a job several times, each time with different parameters, under one budget and one deadline."""
