"""Checkpoint formats to canonical weight layouts."""
