"""What the current `tf.distribute` strategy offers: its devices, its replicas, and what they do together."""
