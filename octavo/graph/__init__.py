"""The operation vocabulary and the tracer."""
