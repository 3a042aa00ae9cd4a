"""The processes of one training run on several machines: who they are, where they listen, starting them.

For parameter servers (`distribute/cluster/`) and for synchronous hosts (`distribute/hosts/`). No TensorFlow.
"""
