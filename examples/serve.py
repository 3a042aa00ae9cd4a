"""Asks an exported language model for the next words, with TensorFlow alone.

python examples/serve.py EXPORT_DIR CONTEXTS.npy ANSWERS.npz
"""

import sys
import time

import _quiet  # noqa: F401  (first: it imports TensorFlow)

# isort: split
import numpy as np
import tensorflow as tf


def main(export, contexts, answers):
    start = time.perf_counter()
    model = tf.saved_model.load(export)
    serve = model.signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    contexts = tf.constant(np.load(contexts))
    result = {key: value.numpy() for key, value in serve(**{name: contexts}).items()}
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(5):
        serve(**{name: contexts})
    each = (time.perf_counter() - start) / 5
    np.savez(answers, **result)
    print(f"   loaded and called in {loaded:.1f} s, then {1e3 * each:.1f} ms for {len(contexts)} contexts")
    ours = "keras_largeout" in sys.modules
    print(f"   in the other process, keras_largeout was {'imported!' if ours else 'never imported'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
