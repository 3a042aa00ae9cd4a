"""What `fit` does on a cluster: steps on workers, metrics on the chief."""
