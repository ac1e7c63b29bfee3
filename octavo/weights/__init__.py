"""Checkpoints: finding, fetching and reading them."""
