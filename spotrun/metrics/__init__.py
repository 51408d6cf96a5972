"""Exports the cost and progress of runs to Prometheus, and the stretches of their time to OpenTelemetry."""
