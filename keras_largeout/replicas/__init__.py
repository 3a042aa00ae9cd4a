"""The current `tf.distribute` strategy: its devices, its replicas, and their collective calls."""
