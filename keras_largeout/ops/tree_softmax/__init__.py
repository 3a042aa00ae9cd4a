"""The softmax over any tree: losses, top-k."""
