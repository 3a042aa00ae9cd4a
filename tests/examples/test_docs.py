"""The pages of docs/: the blocks of a page run one after the other, in one namespace and an empty folder."""

import linecache
import pathlib
import re
import textwrap

import keras
import pytest
import tensorflow as tf

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
OWN_TESTS = {"guides/migrate/keras.md": "test_migration.py"}
#: What a page needs that the tests of the package do not.
NEEDS = {"guides/search.md": "faiss", "guides/keras_hub.md": "keras_hub"}
PAGES = {str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
RUN = [
    pytest.param(name, marks=[pytest.mark.processes] if "subprocess.run" in text else [])
    for name, text in PAGES.items()
    if BLOCK.search(text) and name not in OWN_TESTS
]
#: What tutorials say to expect, with room for other machines and versions: from a page's variables to a bool.
EXPECTED = {
    "two_towers": lambda v: v["found"]["head"] > 0.2 and v["found"]["two towers with kinds"] > 0.26,
    "ranking": lambda v: v["best_auc"] - 0.05 < v["auc"] < v["best_auc"],
    "language_model": lambda v: v["perplexity"] < v["baseline"] / 4,
    "next_item": lambda v: v["found"]["counts of pairs"] < v["found"]["SASRec"] < v["best_possible"],
    "extreme_classification": lambda v: 0.75 < v["course"][-1] < v["reader"],
    "storage": lambda v: v["best_possible"] < v["again"] < 0.45 and abs(v["again"] - v["losses"][-1]) < 1e-5,
    "devices": lambda v: v["difference"] < 1e-5 and v["loads"]["auto"] < 1.2 < 2 < v["loads"]["range"],
    "cluster": lambda v: v["difference"] < 1e-4,
    "serving": lambda v: min(found for _, found in v["results"].values()) > 0.95 and v["curve"][-1][1] > 0.95,
}


@pytest.mark.parametrize("name", RUN)
def test_blocks_run(name, tmp_path, monkeypatch):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    # Each strategy counts the keys of its collectives from the same number: pages must not share keys.
    key = 1000 * (1 + list(PAGES).index(name))
    monkeypatch.setattr(tf.distribute.MirroredStrategy, "_collective_key_base", key)
    policy, names = keras.config.dtype_policy(), {"__name__": "docs"}
    try:
        for block in BLOCK.finditer(PAGES[name]):
            code = textwrap.dedent(block[2])
            file = f"{name}:{PAGES[name].count(chr(10), 0, block.start()) + 1}"
            linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # for tf.function
            exec(compile(code, file, "exec"), names)
        if name.startswith("tutorials/"):
            assert EXPECTED[pathlib.Path(name).stem](names)
    finally:
        keras.config.set_dtype_policy(policy)
