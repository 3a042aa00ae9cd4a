"""The page for users of stock Keras: each block of code runs, both sides of each diff."""

import linecache
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_largeout as kl

GUIDES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guides"
PAGE = GUIDES / "migrate" / "keras.md"
BLOCK = re.compile(r"^```(python|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VOCAB, LENGTH, BATCH = 60, 4, 8


def _sections(page):
    """Return a dict from headings ("": above the first one) to their blocks, `(kind, code, line)`."""
    found, page = {}, page.read_text("utf-8")
    for block in BLOCK.finditer(page):
        headings = re.findall(r"^## (.*)$", page[: block.start()], re.MULTILINE)
        line = page.count("\n", 0, block.start()) + 1
        found.setdefault(headings[-1] if headings else "", []).append((*block.groups(), line))
    return found


SECTIONS = _sections(PAGE)
LOOP = "A hand-written training loop"


def _side(diff, sign):
    """The lines of a diff that are common, and those with a sign."""
    lines = diff.splitlines()
    assert all(not line or line[0] in " +-" for line in lines), lines
    return "".join(line[1:] + "\n" for line in lines if not line or line[0] in (" ", sign))


def _run(heading, sign, names):
    """What the blocks of a section define: those of a diff on one side of it, others on the side of "+"."""
    for kind, code, line in (*SECTIONS[""], *SECTIONS[heading]):
        if kind == "python" and sign == "-" and heading and (kind, code, line) not in SECTIONS[""]:
            continue
        code = code if kind == "python" else _side(code, sign)
        _exec(code, f"{PAGE.name}:{line}{sign}", names)
    return names


def _exec(code, file, names):
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # for tf.function
    exec(compile(code, file, "exec"), names)


def _dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


def _words(rng):
    words = rng.integers(2, VOCAB, (BATCH, LENGTH + 1))
    words[0, LENGTH // 2 :] = 0
    return words


def _gpt(rng):
    words = rng.integers(0, VOCAB, (BATCH, LENGTH + 1))
    return {"train": _dataset(words[:, :-1], words[:, 1:]), "prompts": words[:2, :LENGTH]}


def _translation(rng):
    source, target = _words(rng)[:, :-1], _words(rng)
    train = _dataset({"source": source, "target": target[:, :-1]}, target[:, 1:])
    return {"train": train, "sources": source[:2], "begun": target[:2, :-1]}


def _masked(rng):
    words = _words(rng)[:, :-1]
    masked = (rng.random(words.shape) < 0.4) & (words != 0)
    return {"train": _dataset(np.where(masked, 1, words), np.where(masked, words, -100))}


def _towers(rng):
    user, item = rng.integers(0, 40, BATCH), rng.integers(0, 30, BATCH)
    sizes = {"num_users": 40, "num_items": 30, "item_counts": np.arange(30, 0, -1)}
    return {"train": _dataset({"user": user, "item": item}, np.zeros(BATCH)), **sizes}


def _clicks(rng):
    rows = {"user": 40, "item": 30, "city": 5}
    x = {name: rng.integers(0, n, BATCH) for name, n in rows.items()}
    return {"train": _dataset(x, rng.integers(0, 2, (BATCH, 1))), "rows": rows}


DATA = {
    "A GPT": _gpt,
    "A translation model: encoder and decoder": _translation,
    "A masked language model": _masked,
    "Two towers": _towers,
    "Wide and deep": _clicks,
}


@pytest.mark.parametrize("sign", ["-", "+"])
@pytest.mark.parametrize("heading", DATA)
def test_models(heading, sign, rng, tmp_path, monkeypatch):
    if "block(" in str(SECTIONS[heading]):  # a graph of attention takes long to make
        monkeypatch.setattr(keras.Model, "run_eagerly", property(lambda self: True, lambda self, value: None))
    sizes = {"vocab": VOCAB, "counts": 1 / np.arange(1, VOCAB + 1), "length": LENGTH, "dim": 8, "heads": 2}
    names = _run(heading, sign, {**sizes, **DATA[heading](rng), "folder": str(tmp_path / "export")})
    model = names["model"]
    assert np.isfinite(model.history.history["loss"]).all()
    ours = [layer for layer in model.layers if type(layer).__module__.startswith("keras_largeout")]
    assert bool(ours) == (sign == "+")
    if "begun" in names:
        assert names["next_words"].shape == (2,) and names["next_words"].max() < VOCAB
        if ours:  # the last words that are there, and nobody sees the padding behind the first of them
            (first,) = names["head"].predictor(model, k=1).predict(names["so_far"], verbose=0)["ids"][:1]
            assert names["next_words"][0] == first[LENGTH // 2 - 1, 0]
    if "prompts" in names and ours:
        assert names["best"]["ids"].shape == (2, 10)
    if heading == "Wide and deep":
        assert any(re.fullmatch("wide.*", variable.path) for variable in model.trainable_variables)
    if heading == "Two towers":
        loaded = tf.saved_model.load(names["folder"])
        served = loaded.serve(np.arange(3, dtype="int32"))
        found = served["ids"] if ours else served[1]
        assert found.shape == (3, 10) and int(tf.reduce_max(found)) < 30


def _small_model(vocab=VOCAB):
    keras.utils.set_random_seed(1)
    tokens = keras.Input((LENGTH,), dtype="int32")
    words = kl.layers.ShardedEmbedding(vocab, 8, placement="permutation")
    head = kl.layers.HierarchicalSoftmax(vocab, counts=1 / np.arange(1, vocab + 1))
    return kl.Model(tokens, head(keras.layers.Dense(8)(words(tokens) + words(tokens[:, ::-1])))), head


def _loop_names(rng):
    model, head = _small_model()
    words = rng.integers(0, VOCAB, (4 * BATCH, LENGTH + 1))
    train = _dataset(words[:, :-1], words[:, 1:])
    return {"model": model, "head": head, "train": train, "make_model": _small_model}


@pytest.mark.parametrize("sign", ["-", "+"])
def test_hand_written_loops(sign, rng):
    names = _run(LOOP, sign, _loop_names(rng))
    assert len(names["norms"]) == 5 and np.isfinite(names["norms"]).all()


def test_the_loop_over_several_devices(rng):
    ((_, code, line),) = _sections(GUIDES / "loops.md")["Several devices"]
    names = {"tf": tf, "kl": kl, **_loop_names(rng)}
    _exec(code, f"loops.md:{line}", names)
    model, head = _small_model()  # one device, by `fit`
    losses = []
    model.compile(kl.optimizers.SGD(0.1), loss=head.loss)
    for x, y in names["train"]:
        losses.append(model.train_on_batch(x, y))
    assert len(names["model"].layers[1].table.shards) == 2
    np.testing.assert_allclose(names["losses"], losses, rtol=1e-5)


def test_what_the_guide_says_of_row_gradients():
    model, head = _small_model()
    x = np.array([[5, 7, 7, 5], [9, 3, 3, 9]])  # backwards the same: both lookups have the same gradient
    with tf.GradientTape() as tape:
        loss = head.loss(x, model(x))
    grads = tape.gradient(loss, model.trainable_variables)
    g = grads[0]
    assert isinstance(g, tf.IndexedSlices) and sorted(g.indices.numpy()) == [3, 3, 5, 5, 7, 7, 9, 9]
    for kept in (*tf.clip_by_global_norm(grads, 1.0)[0][:1], tf.clip_by_norm(g, 1.0)):
        assert isinstance(kept, tf.IndexedSlices)
    merged = float(tf.norm(tf.convert_to_tensor(g)))
    np.testing.assert_allclose(float(tf.linalg.global_norm([g])) * 2**0.5, merged, rtol=1e-5)
    for dense in (tf.abs(g), tf.add_n([g, g]), tf.debugging.check_numerics(g, "")):
        assert isinstance(dense, tf.Tensor) and dense.shape == (VOCAB, 8)
    for fails in (lambda: g + g, lambda: 0.5 * g, lambda: g.numpy()):
        with pytest.raises((TypeError, AttributeError)):
            fails()


def test_every_block_was_run():
    assert SECTIONS.keys() == {"", *DATA, LOOP}
