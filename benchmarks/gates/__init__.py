"""The speed Octavo must reach, measured: what `scripts/bench` runs."""
