"""Heads over several devices: trees in parts, layers with fixed fan-in in parts."""
