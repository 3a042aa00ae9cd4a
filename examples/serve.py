"""Ask an exported model, with TensorFlow alone.

python examples/serve.py EXPORT_DIR INPUTS.npz ANSWERS.npz    # arrays by the names of inputs and outputs
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

export, inputs, answers = sys.argv[1:]
began = time.perf_counter()
serve = tf.saved_model.load(export).signatures["serving_default"]
inputs = {name: tf.constant(array) for name, array in np.load(inputs).items()}
np.savez(answers, **{name: value.numpy() for name, value in serve(**inputs).items()})
loaded = time.perf_counter() - began
began = time.perf_counter()
for _ in range(5):
    serve(**inputs)
milliseconds, rows = 200 * (time.perf_counter() - began), len(next(iter(inputs.values())))
print(f"loaded and called in {loaded:.1f} s, then {milliseconds:.1f} ms for {rows} rows")
imported = "imported" if "keras_largeout" in sys.modules else "never imported"
print(f"in the process that serves, keras_largeout was {imported}")
