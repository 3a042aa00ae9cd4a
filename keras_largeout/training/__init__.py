"""The bases of `kl.Model`: training under every strategy, step functions, and files."""
