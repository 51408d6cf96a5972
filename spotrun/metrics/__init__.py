"""Exports what runs cost and how they are doing: to Prometheus, and to OpenTelemetry."""
