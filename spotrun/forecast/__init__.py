"""Forecasts a job, and compares strategies, by simulating runs and markets."""
