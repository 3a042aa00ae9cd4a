"""Tests and measures the CUDA kernels on a machine with a GPU: see README.md and run.sh."""
