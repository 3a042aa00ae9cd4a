"""Training loops of `kl.Model`, where they are not Keras's: the functions that take the steps."""
