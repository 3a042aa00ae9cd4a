"""Vocabularies: unbounded 64-bit ids to the rows of a fixed table."""
