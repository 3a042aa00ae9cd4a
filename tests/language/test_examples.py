"""The examples of public docstrings run: blocks of `>>>` by doctest, blocks of Python as they are.

`_worlds.py` has the names that an example takes for granted. Devices are CPUs where there is no GPU.
"""

import doctest
import linecache
import re
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from language import _worlds
from language.test_docstrings import DOCUMENTED

import keras_largeout as kl

pytestmark = pytest.mark.full
_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {name: text for name, (text, _) in DOCUMENTED.items() if ">>> " in text or _BLOCK.search(text)}
#: What an example needs beside this package and TensorFlow.
NEEDS = {
    "callbacks.LoadBalance": "matplotlib",
    "callbacks.PrometheusMetrics": "prometheus_client",
    "callbacks.TensorBoard": "tensorboard",
    "datasets.LabeledRows": "sklearn",
    "datasets.SparseRows": "sklearn",
    "datasets.TabularFiles": "pyarrow",
    "metrics.ExpectedCalibrationError": "matplotlib",
    "serving.ClassIndex": "faiss",
    "serving.index": "faiss",
    "trees.cooccurrence_vectors": "sklearn",
}


def _fitting(text):
    """Return an example that runs here: on CPUs where there is no GPU, in the folder that it runs in."""
    text = re.sub(r'"/(\w)', r'"\1', text)
    return text if tf.config.list_logical_devices("GPU") else text.replace('"GPU:', '"CPU:')


def _run(code, file, names):
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # for tf.function
    exec(compile(code, file, "exec"), names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = name.removeprefix("keras_largeout.")
    if short in NEEDS:
        pytest.importorskip(NEEDS[short])
    text, policy = _fitting(EXAMPLES[name]), keras.config.dtype_policy()
    names = {"__name__": "docs", "keras": keras, "np": np, "tf": tf, "kl": kl, "keras_largeout": kl}
    try:
        _run(_worlds.SETUPS.get(short, ""), f"{name} (setup)", names)
        for number, block in enumerate(_BLOCK.finditer(text)):
            _run(textwrap.dedent(block[2]), f"{name} ({number})", names)
        example = doctest.DocTestParser().get_doctest(_BLOCK.sub("", text), names, name, name, 0)
        said = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append, clear_globs=False)
        assert not said, "".join(said)
    finally:
        keras.config.set_dtype_policy(policy)
