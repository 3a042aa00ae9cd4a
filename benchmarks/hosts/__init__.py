"""Synchronous training on several hosts: what travels between them, and what that says of larger ones.

One fixed work: two large tables and a softmax over a tree, ids by Zipf's law, the same batch however many
processes there are. It is trained by

- synchronous hosts: 2 and 4 processes of this machine, and 2 with two logical CPUs each;
- parameter servers: as many workers, with as many servers, each step of a worker on its part of the batch;
- one process with as many logical CPUs (`tf.distribute.MirroredStrategy`).

All processes share this machine's cores, so examples per second and times of steps say nothing of speedup:
with more processes there is more to do, and no more to do it with. What does mean something: bytes on the
wire (of the TCP connections of these processes), blocks and their padding (counted), processor time of all
processes together, and the time of the exchange alone, which is mostly the latency of gRPC here.

A block has the size of the largest one between any two hosts, rounded up to one of a fixed list. Padding is
what is sent over what is needed; only rows to other hosts count.

From the formulas in `prediction.py`, whose bytes stand beside the measured ones, it predicts 8 to 64 hosts
with 1 and 8 GPUs each.

python -m benchmarks.hosts [--quick]
"""
