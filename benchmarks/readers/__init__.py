"""How many rows of a file a reader hands on in a second."""
