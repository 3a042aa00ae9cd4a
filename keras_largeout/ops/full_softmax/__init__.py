"""A softmax over all classes in chunks: what a loss needs of it, and the best classes."""
