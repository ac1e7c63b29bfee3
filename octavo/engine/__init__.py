"""The loop, its thread, input and output processing."""
