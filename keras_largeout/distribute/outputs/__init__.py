"""Heads over several devices: trees in parts, layers with fixed fan-in in parts.

*A tree* is cut into a replicated top and whole subtrees. The cut belongs to the tree, not to the number
of devices. The top is its own tree, whose leaves are classes or stand for subtrees. What a device
has below the top is a forest: nodes without a parent are its roots. So `-log p` is one `TreeSoftmaxLoss`
on the replica and one on each device that owns a target's subtree. A hidden vector travels to one device
at most, and no replica ever sees another's batch.

*A layer with fixed fan-in* gives each device a run of classes; all that belongs to a class is on one
device. Without its own optimizer it has gradients `[classes, fan_in]`, which the model's optimizer
takes as rows. With one, the op `FanInLoss` gives losses, and its gradient is `FanInStep`: logits,
gradient, update and gradient of the inputs, some classes at a time, in place. For a gradient to be taken
at all, though nothing below the layer need be trained, the layer has an empty trained weight, the
*trigger*. The batches of all replicas meet in one call, so that a class is updated once per step with the
whole batch. Random choices (first connections, rewiring, rounding) follow from seed, step and class
alone, so they do not depend on the number of devices.
"""
