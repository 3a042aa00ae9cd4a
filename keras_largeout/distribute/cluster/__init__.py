"""Training on parameter servers: who takes part, and what `fit` does there."""
