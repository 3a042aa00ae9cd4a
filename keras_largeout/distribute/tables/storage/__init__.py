"""Where the memory of tables is: that of devices, that of the host, or files."""
