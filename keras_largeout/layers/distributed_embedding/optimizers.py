"""Tables with optimizers of their own: how a model must be compiled, and whether it is."""

import re

from keras_largeout.distribute.replicas.optimizer_check import optimizer_of_call, responsible_for
from keras_largeout.layers.distributed_embedding.config import unnumbered


class TableOptimizers:
    """The optimizers that tables of a layer have of their own.

    (An attribute of a layer that is a list Keras would search for what to save, and find them there before
    the model's optimizer saves them.)

    Args:
        stacks: `Stack`s of the layer.
    """

    def __init__(self, stacks):
        self._found = []  # of (optimizer, names of the stacks that it updates)
        for stack in stacks:
            optimizer = stack.first.optimizer
            if optimizer is None:
                continue
            names = next((names for other, names in self._found if same(optimizer, other)), None)
            if names is None:
                self._found.append((optimizer, [stack.name]))
            else:
                names.append(stack.name)

    def by_path(self, layer_name):
        """dict from patterns of variables' paths, on any number of devices, to optimizers."""
        return {_paths(layer_name, names): optimizer for optimizer, names in self._found}

    def check_compiled(self, layer):
        """Raises unless the model that is calling `layer` trains these tables with these optimizers.

        Outside a compiled model (a custom training loop, say) there is nothing to check.

        Raises:
            ValueError: another optimizer will update a table that has one of its own.
        """
        compiled = optimizer_of_call(layer) if self._found else None
        if compiled is None:
            return
        for shard in layer.shards:
            own = next(
                (o for pattern, o in self.by_path(layer.name).items() if re.fullmatch(pattern, shard.path)),
                None,
            )
            responsible = own and responsible_for(compiled, shard)
            # By name: a loaded model has copies, and where a step is being traced no values can be read.
            if responsible and (type(own), own.name) != (type(responsible), responsible.name):
                raise ValueError(
                    f"Tables of {layer.name!r} have an `optimizer` of their own, {own.name}, so the model "
                    "must be compiled with keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap("
                    f"default, layer.table_optimizers())). Received: {responsible.name} for {shard.path}"
                )


def same(optimizer, other):
    """Whether two optimizers are one, or copies of one (a loaded layer has a copy for each table)."""
    if optimizer is other:
        return True
    if type(optimizer) is not type(other):
        return False
    return unnumbered(optimizer.get_config()) == unnumbered(other.get_config())


def variable_name(stack):
    """The name of a stack's array: that of no other stack's shard, whatever the stacks are called."""
    return f"{stack}.embeddings"


def _paths(layer_name, stacks):
    names = "|".join(re.escape(variable_name(stack)) for stack in stacks)
    return rf"(.*/)?{re.escape(layer_name)}/({names})(_hot|_\d+)?"
