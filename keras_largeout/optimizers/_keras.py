"""The private parts of Keras that the optimizers need, where nothing public does the same."""

import keras


def step_counter(optimizer):
    """The variable that counts the calls of `apply`.

    With `gradient_accumulation_steps` the public `iterations` is a quotient of it, and cannot be increased.
    """
    counter = getattr(optimizer, "_iterations", None)
    if counter is None:
        raise AttributeError(
            "`keras.optimizers.Optimizer` must count its steps in the attribute `_iterations`. "
            f"Received: Keras {keras.__version__}, which has none"
        )
    return counter
