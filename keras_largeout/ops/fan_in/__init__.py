"""Outputs with fixed fan-in: logits, losses, fused steps, rewiring."""
