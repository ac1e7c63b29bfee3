"""Counters, histograms, Prometheus text."""
