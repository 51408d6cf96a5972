"""Forecasts a job and compares strategies, by simulated runs and markets."""
