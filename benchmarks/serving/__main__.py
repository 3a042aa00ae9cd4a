"""Latency and requests a second of an export, in a process that has TensorFlow alone.

A recommender over 100,000 items, histories of 1 to 20 of them: ragged when it was trained, padded in the
signature. Clients are threads: each sends a row, waits for the best 10 items, and sends the next. "One by
one" calls the signature for each request; "batched" collects what arrives within 2 ms, up to 32 rows, by the
batcher of TensorFlow (`tf.nondifferentiable_batch_function`). "Whole batches" has 32 rows a request: what the
model itself takes. No network is in the times.

    python -m benchmarks.serving [--quick]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks import _table
from benchmarks import machine as the_machine
from benchmarks._harness import ROOT

ITEMS, QUICK_ITEMS, DIM, HISTORY, K = 100_000, 2_000, 64, 20, 10
ROWS, DELAY_MICROSECONDS = 32, 2_000  # of a batch
CLIENTS = (1, 8, 32)
ONE_BY_ONE, BATCHED, WHOLE, LITE = "one by one", "batched", "whole batches", "TFLite"
LOGITS = "top_k of the logits"


def export(folder, items):
    """Write the exports: the predictor, the same in int8, and one that leaves out the log-softmax."""
    import keras
    import tensorflow as tf

    import keras_largeout as kl

    keras.utils.set_random_seed(0)
    history = keras.Input((None,), dtype="int32", ragged=True, name="history")
    rows = kl.layers.ShardedEmbedding(items, DIM, "normal", combiner="mean")(history)
    head = kl.layers.FullSoftmax(items, kernel_initializer="normal")
    model = kl.Model(history, head(keras.layers.Dense(DIM)(rows)))
    predictor = head.predictor(model, k=K)
    kl.export_saved_model(predictor, f"{folder}/float32")
    kl.export_saved_model(predictor, f"{folder}/int8", table_dtype="int8")

    class BestLogits(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight((items, DIM), "normal")
            self.bias = self.add_weight((items,), "zeros")

        def call(self, hidden):
            logits = tf.matmul(hidden, self.kernel, transpose_b=True) + self.bias
            scores, ids = tf.math.top_k(logits, K)
            return {"ids": ids, "scores": scores}

        def compute_output_spec(self, hidden):
            outputs = {"ids": "int32", "scores": "float32"}
            return {name: keras.KerasTensor((None, K), dtype) for name, dtype in outputs.items()}

    hidden = model.layers[-1].input
    kl.export_saved_model(keras.Model(history, BestLogits()(hidden)), f"{folder}/logits")
    lite = tf.lite.TFLiteConverter.from_saved_model(f"{folder}/float32").convert()
    with open(f"{folder}/model.tflite", "wb") as file:
        file.write(lite)


def answer_requests(folder, items, seconds):
    """Print one JSON list a row of the table. Nothing here imports Keras or this package."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = rng.integers(0, items, (1024, HISTORY)).astype("int32")
    rows[np.arange(HISTORY) >= rng.integers(1, HISTORY + 1, (1024, 1))] = -1
    for name, modes in (
        ("float32", (ONE_BY_ONE, BATCHED, WHOLE)),
        ("int8", (ONE_BY_ONE, BATCHED, WHOLE)),
        ("logits", (WHOLE,)),
    ):
        served = tf.saved_model.load(f"{folder}/{name}")
        signature = served.signatures["serving_default"]
        batch = batched(signature)
        for mode in modes:
            call = batch if mode == BATCHED else lambda x, one=signature: one(history=x)
            size = ROWS if mode == WHOLE else 1
            requests = [tf.constant(rows[i : i + size]) for i in range(0, 1024 - size, size)]
            np.testing.assert_array_equal(np.shape(call(requests[0])["ids"]), (size, K))
            for clients in CLIENTS if mode != WHOLE else (1,):
                report(LOGITS if name == "logits" else name, mode, clients, call, requests, seconds)
    runner = lite_runner(tf, f"{folder}/model.tflite")
    report(LITE, ONE_BY_ONE, 1, lambda x: runner(history=x), [rows[i : i + 1] for i in range(1023)], seconds)


def batched(signature):
    """Return a function that answers concurrent requests in batches."""
    import tensorflow as tf

    @tf.nondifferentiable_batch_function(
        1, ROWS, DELAY_MICROSECONDS, max_enqueued_batches=100, autograph=False
    )
    def together(history):
        answer = signature(history=history)
        return answer["ids"], answer["scores"]

    @tf.function(input_signature=[tf.TensorSpec([None, HISTORY], tf.int32)], autograph=False)
    def call(history):
        ids, scores = together(history)
        return {"ids": ids, "scores": scores}

    return call


def lite_runner(tf, path):
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        Interpreter = tf.lite.Interpreter
    return Interpreter(model_path=path).get_signature_runner("serving_default")


def report(name, mode, clients, call, requests, seconds):
    """Let the clients send requests for some seconds, and print what they took."""
    for request in requests[:20]:
        call(request)
    took, stop = [[] for _ in range(clients)], threading.Event()

    def client(number):
        at = number
        while not stop.is_set():
            began = time.perf_counter()
            call(requests[at % len(requests)])["ids"]
            took[number].append(time.perf_counter() - began)
            at += clients

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    began, processor = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    wall, processor, each = time.perf_counter() - began, time.process_time() - processor, np.concatenate(took)
    count = len(each) * len(requests[0])
    print(json.dumps([name, mode, clients, *np.quantile(each, (0.5, 0.99)), count / wall, processor / count]))
    sys.stdout.flush()


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ITEMS:,} items, a moment a row")
    parser.add_argument("--markdown", metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--answer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.answer:
        folder, items, seconds = options.answer
        answer_requests(folder, int(items), float(seconds))
        return 0
    items, seconds = (QUICK_ITEMS, 0.2) if options.quick else (ITEMS, 4)
    with tempfile.TemporaryDirectory(prefix="largeout-bench-") as folder:
        export(folder, items)
        block = "import sys; sys.modules['keras_largeout'] = sys.modules['keras'] = None\n"
        code = block + "from benchmarks.serving.__main__ import main; main()"
        arguments = ["--answer", folder, str(items), str(seconds)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    header = ["export", "requests", "clients", "median ms", "99% ms", "rows/s", "processor ms a row"]
    lines = [
        [name, mode, clients, *map(_table.milliseconds, (median, worst)), f"{rate:,.0f}", f"{1e3 * cpu:.2f}"]
        for name, mode, clients, median, worst, rate, cpu in found
    ]
    print(_table.aligned(header, lines))
    if options.markdown:
        text = f"{items:,} items, rows of {DIM}. Two cores of: {the_machine.cpu_name()}.\n\n"
        _table.write_markdown(options.markdown, "serving", text + _table.markdown(header, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
