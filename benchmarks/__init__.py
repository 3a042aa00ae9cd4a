"""Benchmarks against other libraries, measured in the same run: see README.md."""
