"""The storage of tables: device memory, host memory, or files."""
