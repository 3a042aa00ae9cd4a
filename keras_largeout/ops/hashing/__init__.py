"""Hashing: categories, strings or integers, as ids of a table of fixed size."""
