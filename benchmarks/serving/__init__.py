"""How fast a process answers requests with an export, one at a time and in batches."""
