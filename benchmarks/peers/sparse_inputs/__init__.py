"""Hashed strings and wide sparse rows, of each library."""
