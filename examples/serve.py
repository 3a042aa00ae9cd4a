"""Asks an exported model, with TensorFlow alone.

python examples/serve.py EXPORT_DIR INPUTS.npy ANSWERS.npz    # .npz for several inputs, by their names
"""

import sys
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import numpy as np
import tensorflow as tf


def main(export, inputs, answers):
    start = time.perf_counter()
    model = tf.saved_model.load(export)
    serve = model.signatures["serving_default"]
    inputs = np.load(inputs)
    if isinstance(inputs, np.ndarray):
        (name,) = serve.structured_input_signature[1]
        inputs = {name: inputs}
    inputs = {name: tf.constant(array) for name, array in inputs.items()}
    result = {key: value.numpy() for key, value in serve(**inputs).items()}
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(5):
        serve(**inputs)
    each = (time.perf_counter() - start) / 5
    np.savez(answers, **result)
    rows = len(next(iter(inputs.values())))
    print(f"   loaded and called in {loaded:.1f} s, then {1e3 * each:.1f} ms for {rows} rows")
    ours = "keras_largeout" in sys.modules
    print(f"   in the other process, keras_largeout was {'imported!' if ours else 'never imported'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
