"""Files: complete or not there, and damage is noticed. Neither TensorFlow nor Keras is needed here."""
