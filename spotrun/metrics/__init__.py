"""Exports the cost and progress of runs to Prometheus, and a timeline of each run to OpenTelemetry."""
