"""Exports the cost and the progress of runs to Prometheus, and their times to OpenTelemetry."""
