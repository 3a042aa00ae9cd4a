"""Heads: layers over many classes that return the hidden vectors, own the output weights and bring a loss."""
