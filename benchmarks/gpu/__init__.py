"""Build, test and measure the CUDA kernels on a machine with a GPU: see README.md."""
