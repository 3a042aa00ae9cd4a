"""Synchronous training on several hosts: who takes part, and what `fit` does there.

Every host runs the same script, and Keras's own loops. TensorFlow cuts the data (a dataset is read by every
host, which takes its part of each batch) and ends the epoch of all hosts together. Dense weights are
all-reduced. Tables are cut over the devices of all hosts: `replicas/collectives.py`.

A host never goes on alone. What all do together waits for all: every step, and whatever reads rows of a table
(`save`, `numpy`). So every host must do it.
"""
