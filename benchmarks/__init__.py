"""What Octavo is measured with. Run from the root of the repository: python -m benchmarks.NAME --help."""
