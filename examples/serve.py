"""Ask an exported model, with TensorFlow alone.

python examples/serve.py EXPORT_DIR INPUTS.npz ANSWERS.npz    # arrays by the names of inputs and outputs
python examples/serve.py EXPORT_DIR --apply .../serving/apply.py

The second one serves until its standard input ends. A line `INPUTS.npz ANSWERS.npz` is a request, and a line
`update.delta` changes the model. It prints a line for each.
"""

import os
import runpy
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

export, inputs, answers = sys.argv[1:]
began = time.perf_counter()
loaded = tf.saved_model.load(export)
serve = loaded.signatures["serving_default"]


def answer(inputs, answers):
    """Write the answers to the inputs in a file, and return the inputs."""
    inputs = {name: tf.constant(array) for name, array in np.load(inputs).items()}
    np.savez(answers, **{name: value.numpy() for name, value in serve(**inputs).items()})
    return inputs


def where_imported():
    return "imported" if "keras_largeout" in sys.modules else "never imported"


if inputs == "--apply":
    apply_delta = runpy.run_path(answers)["apply_delta"]
    for words in map(str.split, sys.stdin):
        if len(words) == 2:
            answer(*words)
            print(f"answered, keras_largeout {where_imported()}", flush=True)
        else:
            apply_delta(loaded, *words)
            print("applied", flush=True)
else:
    inputs = answer(inputs, answers)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(5):
        serve(**inputs)
    milliseconds, rows = 200 * (time.perf_counter() - began), len(next(iter(inputs.values())))
    print(f"loaded and called in {seconds:.1f} s, then {milliseconds:.1f} ms for {rows} rows")
    print(f"in the process that serves, keras_largeout was {where_imported()}")
