"""Trains a job with several parameters under one budget and one deadline."""
