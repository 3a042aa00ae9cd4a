"""Pictures of the examples, a file for each; `axes.py` is what they have in common."""
