"""Blocks of the KV cache: which are free, which are whose."""
