"""`Retrieval`: losses beside a NumPy reference, on one device and several, and its index."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _tables import strategy_of
from _training import assert_same, fit

import keras_largeout as kl

USERS, ITEMS, KINDS, DIM, BATCH = 40, 30, 5, 6, 12
COUNTS = np.linspace(1, 40, ITEMS)
KIND_OF = (np.arange(ITEMS) % KINDS).astype("int32")


def log_sum_exp(logits):
    return np.log(np.exp(logits - logits.max()).sum()) + logits.max()


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def expected_losses(
    users,
    items,
    y,
    normalize=False,
    temperature=1.0,
    counts=None,
    remove_accidental_hits=True,
    negatives=None,
    hard=None,
    cached=(),
):
    """The loss of each row in float64. `negatives`, `hard` and `cached`: `(vectors, ids)`."""
    scale = unit if normalize else lambda vectors: vectors
    queries, own = scale(users.astype(np.float64)) / temperature, scale(items.astype(np.float64))
    parts = [(own[y >= 0], y[y >= 0], np.flatnonzero(y >= 0)), *((*part, None) for part in cached)]
    compared = sum(len(part[1]) for part in parts)
    drawn = 0
    if negatives is not None:
        drawn = np.sum(negatives[1] >= 0)
        parts.append((scale(negatives[0].astype(np.float64)), negatives[1], None))
    losses = np.zeros(len(y))
    for i in np.flatnonzero(y >= 0):
        logits = []
        for vectors, ids, rows in parts:
            for j, item in enumerate(ids):
                is_own = rows is not None and rows[j] == i
                if item < 0 or is_own or (remove_accidental_hits and item == y[i]):
                    continue
                logits.append(queries[i] @ vectors[j])
                if counts is not None:
                    logits[-1] -= np.log(compared * counts[item] / counts.sum() + drawn / len(counts))
        if hard is not None:
            for vector, item in zip(scale(hard[0][i].astype(np.float64)), hard[1][i]):
                if item >= 0 and not (remove_accidental_hits and item == y[i]):
                    logits.append(queries[i] @ vector)
        score = queries[i] @ own[i]
        losses[i] = log_sum_exp(np.array([score, *logits])) - score
    return losses


def batch(rng, rows=BATCH):
    """User and item vectors and ids, of which some come twice and one is no target."""
    vectors = {i: rng.normal(size=DIM).astype("float32") for i in range(ITEMS)}
    y = rng.integers(0, 8, rows)
    y[3] = -1
    users = rng.normal(size=(rows, DIM)).astype("float32")
    return users, np.array([vectors[max(i, 0)] for i in y]), y


def losses_of(head, users, y, *given, training=True, **more):
    hidden = head(tf.constant(users), *(tf.constant(x) for x in given), training=training, **more)
    return head.make_loss(reduction="none")(y, hidden).numpy()


OPTIONS = {
    "plain": {},
    "cosine": {"normalize": True, "temperature": 0.2},
    "counts": {"counts": COUNTS},
    "hits": {"remove_accidental_hits": False, "counts": COUNTS},
}


@pytest.mark.parametrize("given", ["", "negatives", "hard", "both"])
@pytest.mark.parametrize("options", OPTIONS)
def test_losses(rng, options, given):
    options, (users, items, y) = OPTIONS[options], batch(rng)
    head = kl.layers.Retrieval(**options)
    negatives = rng.normal(size=(7, DIM)).astype("float32"), np.array([1, 2, 9, 11, -1, 20, 2])
    hard = rng.normal(size=(BATCH, 3, DIM)).astype("float32"), rng.integers(-1, 8, (BATCH, 3))
    more, want = {}, {}
    if given in ("negatives", "both"):
        more |= dict(zip(("negatives", "negative_ids"), map(tf.constant, negatives)))
        want["negatives"] = negatives
    if given in ("hard", "both"):
        more |= dict(zip(("hard_negatives", "hard_negative_ids"), map(tf.constant, hard)))
        want["hard"] = hard
    for training in (True, False):
        got = losses_of(head, users, y, items, training=training, **more)
        np.testing.assert_allclose(got, expected_losses(users, items, y, **options, **want), rtol=1e-5)


def test_rows_of_weight_0_are_no_candidates(rng):
    users, items, y = batch(rng)
    weight = np.ones(BATCH, "float32")
    weight[5:7] = 0
    head = kl.layers.Retrieval()
    got = float(head.loss(y, head(tf.constant(users), tf.constant(items)), weight))
    left = expected_losses(users, items, np.where(weight > 0, y, -1))
    assert got == pytest.approx(left.sum() / (y >= 0).sum(), rel=1e-5)


def test_time_steps(rng):
    """Every unmasked step of every sequence is a token, and its item a candidate."""
    users, items, y = batch(rng)
    head, shape = kl.layers.Retrieval(cache=4), (3, BATCH // 3)
    masked = keras.layers.Masking()(
        tf.constant(np.where(np.arange(BATCH) < 7, users.T, 0).T.reshape(*shape, DIM))
    )
    hidden = head(masked, tf.constant(items.reshape(*shape, DIM)), training=True)
    got = head.make_loss(reduction="none")(y.reshape(shape), hidden).numpy()
    want = expected_losses(users, items, np.where(np.arange(BATCH) < 7, y, -1))
    np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-5)


def test_gradients(rng):
    """Those of the losses of float64, by differences."""
    users, items, y = batch(rng)
    head = kl.layers.Retrieval(normalize=True, temperature=0.3, counts=COUNTS)
    given = [tf.constant(users), tf.constant(items)]
    with tf.GradientTape() as tape:
        tape.watch(given)
        loss = head.make_loss(reduction="sum")(y, head(*given, training=True))
    for which, gradient in enumerate(tape.gradient(loss, given)):
        for place in [(0, 0), (5, 3), (11, 5)]:
            sides = []
            for step in (1e-4, -1e-4):
                moved = [users.astype(np.float64), items.astype(np.float64)]
                moved[which][place] += step
                sides.append(expected_losses(*moved, y, True, 0.3, COUNTS).sum())
            assert float(gradient[place]) == pytest.approx((sides[0] - sides[1]) / 2e-4, rel=1e-3, abs=1e-5)


def test_cache(rng):
    """Items of past batches, the newest first, as many as fit; not those of evaluation."""
    head, cached = kl.layers.Retrieval(cache=15, counts=COUNTS, normalize=True), []
    for training in (True, True, False, True):
        users, items, y = batch(rng)
        past = [tuple(map(np.array, zip(*cached)))] if cached else []
        want = expected_losses(users, items, y, normalize=True, counts=COUNTS, cached=past)
        np.testing.assert_allclose(losses_of(head, users, y, items, training=training), want, rtol=1e-5)
        if training:
            new = [(vector, item) for vector, item in zip(unit(items.astype(np.float64)), y) if item >= 0]
            cached = [*new, *cached][:15]


def test_half_precision_trains_the_cache(rng):
    """Vectors of the type float16 are cast, and are still of training."""
    users, items, y = (x.astype("float16") if x.dtype == "float32" else x for x in batch(rng))
    head = kl.layers.Retrieval(ITEMS, cache=BATCH, counts="streaming", dtype="mixed_float16")
    for training, steps in ((False, 0), (True, 1)):
        losses_of(head, users, y, items, training=training)
        memory = head.get_weights()
        assert [x.tolist() for x in memory if x.shape == () and x.dtype == "int64"] == [steps]
        assert sum(np.sum(x >= 0) for x in memory if x.shape == (BATCH,)) == steps * np.sum(y >= 0)


def test_streaming_frequencies(rng):
    """An item that comes in every n-th step is expected 1 / n times in one; one that comes twice, 2 times."""
    head = kl.layers.Retrieval(ITEMS, counts="streaming")
    users, items = rng.normal(size=(2, 5, DIM)).astype("float32")
    interval = np.zeros(ITEMS)
    for step in range(1, 41):
        y = np.array([0, 0, 1, 2 if step % 2 == 0 else -1, 3 if step % 5 == 1 else -1])
        losses_of(head, users, y, items)
        for item, passed in ((0, 0.5), (1, 1), (2, 2), (3, 5)):
            if item in y:
                passed = 1 if item == 3 and step == 1 else passed
                interval[item] = 0.95 * interval[item] + 0.05 * passed if interval[item] else passed
    per_step = 1 / interval[:4]
    got = head._batch_softmax.stream.per_step(tf.range(4, dtype=tf.int64))
    np.testing.assert_allclose(got, per_step, rtol=1e-5)
    np.testing.assert_allclose(per_step[:3], [2, 1, 1 / 2])
    y = np.arange(5) % 4
    counts = np.zeros(ITEMS)  # of which 5 targets have as many as are expected in a step
    counts[:4], counts[-1] = per_step, 5 - per_step.sum()
    want = expected_losses(users, items, y, counts=counts)
    np.testing.assert_allclose(losses_of(head, users, y, items, training=False), want, rtol=1e-5)


def towers(devices=1, strategy=None, compile_args=(), exclude=False, **options):
    """A compiled model of two towers, its head, the item tower and the model of users alone."""
    keras.utils.set_random_seed(3)
    with (strategy or strategy_of(devices)).scope():
        user, item, kind = (keras.Input((), dtype="int32", name=name) for name in ("user", "item", "kind"))
        seen = keras.Input((None,), dtype="int32", name="seen")
        place = "auto" if devices == 1 else "modulo"
        users = kl.layers.ShardedEmbedding(USERS, DIM, placement=place, name="users")(user)
        rows = [
            kl.layers.ShardedEmbedding(ITEMS, DIM, placement=place, name="items")(item),
            keras.layers.Embedding(KINDS, DIM, name="kinds")(kind),
        ]
        item_tower = kl.Model({"item": item, "kind": kind}, keras.layers.add(rows))
        head = kl.layers.Retrieval(name="head", **options)
        inputs = {"user": user, "item": item, "kind": kind}
        hidden = head(users, item_tower({"item": item, "kind": kind}), exclude=seen if exclude else None)
        model = kl.Model({**inputs, "seen": seen} if exclude else inputs, hidden)
        queries = kl.Model(user, head(users))
        model.compile(kl.optimizers.LazyAdam(0.05), loss=head.loss, **dict(compile_args))
    return model, head, item_tower, queries


def pairs(rng, rows=4 * BATCH):
    user, item = rng.integers(0, USERS, rows), rng.integers(0, ITEMS, rows)
    item[5] = item[0]
    return {"user": user, "item": item, "kind": KIND_OF[item]}, item


CATALOGUE = {"item": np.arange(ITEMS), "kind": KIND_OF}


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"normalize": True, "temperature": 0.2},
        {"counts": COUNTS, "remove_accidental_hits": False},
        {"num_items": ITEMS, "counts": "streaming", "cache": 20},
    ],
)
def test_devices(rng, options):
    """Two devices give the losses and tables of one on the same global batches."""
    x, y = pairs(rng, 4 * BATCH - 5)  # the last batch cannot be divided
    y = np.where(np.arange(len(y)) == 7, -1, y)
    found = []
    for devices in (1, 2):
        model, head, item_tower, queries = towers(devices, **options)
        losses = fit(model, (x, y), BATCH)
        head.index(CATALOGUE, item_tower)
        hidden = queries.predict(np.arange(USERS), verbose=0)
        scores, ids = head.top_k(hidden, 4, exclude=np.arange(USERS)[:, None])
        users = model.get_layer("users").table.numpy()
        arrays = {"users": users, "index": head.kernel.numpy(), "scores": scores, "ids": ids}
        found.append((losses, arrays))
    # Keras weighs the loss that it logs of the last batch by the numbers of rows of the devices.
    np.testing.assert_allclose(found[1][0][:-1], found[0][0][:-1], rtol=1e-5)
    assert_same(found[1][1], found[0][1])


@pytest.mark.full
@pytest.mark.parametrize("options", [{"counts": COUNTS}, {"remove_accidental_hits": False}])
def test_given_negatives_on_devices(rng, options):
    """Every row is compared with the further items of both devices, and with its own hard ones alone."""
    item = rng.integers(0, ITEMS, 2 * BATCH)
    shapes = {"item": (), "negative": (), "hard": (2,)}
    x = {
        "item": item,
        **{name: rng.integers(-1, ITEMS, (2 * BATCH, *shapes[name])) for name in ("negative", "hard")},
    }
    x["user"] = rng.integers(0, USERS, 2 * BATCH)
    found = []
    for devices in (1, 2):
        keras.utils.set_random_seed(3)
        with strategy_of(devices).scope():
            ids = {name: keras.Input(shape, dtype="int32", name=name) for name, shape in shapes.items()}
            user = keras.Input((), dtype="int32", name="user")
            place = "auto" if devices == 1 else "modulo"
            users = kl.layers.ShardedEmbedding(USERS, DIM, placement=place)
            items = kl.layers.ShardedEmbedding(ITEMS, DIM, placement=place)
            vectors = {name: items(keras.ops.maximum(ids[name], 0)) for name in shapes}
            head = kl.layers.Retrieval(normalize=True, temperature=0.3, **options)
            hidden = head(
                users(user),
                vectors["item"],
                negatives=vectors["negative"],
                negative_ids=ids["negative"],
                hard_negatives=vectors["hard"],
                hard_negative_ids=ids["hard"],
            )
            model = kl.Model({"user": user, **ids}, hidden)
            model.compile(kl.optimizers.LazyAdam(0.05), loss=head.loss)
        losses = fit(model, (x, item), BATCH)
        found.append((losses, {"users": users.table.numpy(), "items": items.table.numpy()}))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    assert_same(found[1][1], found[0][1])


def test_search(rng):
    """The best items of the index, but those excluded; items that were not indexed are not found."""
    head = kl.layers.Retrieval(normalize=True, temperature=0.5)
    users, vectors = rng.normal(size=(4, DIM)).astype("float32"), rng.normal(size=(8, DIM)).astype("float32")
    head(users)
    with pytest.raises(ValueError, match="no items to search"):
        head.top_k(users, 3)
    ids = np.array([3, 0, 7, 12, 5, 6, 9, 1])
    head.index(vectors, ids=ids)
    assert head.num_items == 13
    logits = unit(users.astype(np.float64)) @ unit(vectors.astype(np.float64)).T / 0.5
    log_p = logits - np.array([[log_sum_exp(row)] for row in logits])
    order = np.argsort(-logits, axis=1)
    scores, found = head.top_k(users, 8)
    np.testing.assert_array_equal(found, ids[order])
    np.testing.assert_allclose(scores, np.take_along_axis(log_p, order, 1), rtol=1e-4, atol=1e-5)
    scores, found = head.top_k(users, 10, exclude=ids[order[:, :2]])
    np.testing.assert_array_equal(found, np.pad(ids[order[:, 2:]], [(0, 0), (0, 4)], constant_values=-1))
    assert np.all(np.isneginf(scores[:, 6:]))
    losses = losses_of(head, users, ids[:4], training=False)
    np.testing.assert_allclose(losses, -np.diagonal(log_p[:, :4]), rtol=1e-4)
    head.index(vectors[:4], ids=ids[:4])  # the others are gone
    assert np.all(np.sort(head.top_k(users, 5)[1], axis=1)[:, 1:] == np.sort(ids[:4]))


@pytest.mark.parametrize("kind", ["arrays", "pairs", "named", "model"])
def test_sources_of_items(rng, kind):
    _, head, item_tower, _ = towers(num_items=ITEMS)
    want = item_tower.predict(CATALOGUE, verbose=0)
    order = rng.permutation(ITEMS)
    shuffled = {name: values[order] for name, values in CATALOGUE.items()}
    if kind == "arrays":
        head.index(shuffled, item_tower, ids=order)
    elif kind == "named":
        head.index(shuffled, item_tower, ids="item", batch_size=7)
    elif kind == "pairs":
        head.index(tf.data.Dataset.from_tensor_slices((shuffled, order)).batch(8), item_tower)
    else:
        ids = keras.Input((), dtype="int32")
        own = keras.Model(ids, keras.layers.Embedding(ITEMS, DIM)(ids))
        want = own.predict(np.arange(ITEMS), verbose=0)
        head.index(own)
    np.testing.assert_allclose(head.kernel.numpy(), want, rtol=1e-6)


def trained_towers(rng):
    """Return what `towers` does, its data and what it was trained on; the head has an index."""
    made, data = towers(normalize=True, temperature=0.1, cache=9), pairs(rng)
    made[0].fit(*data, batch_size=BATCH, verbose=0)
    made[1].index(CATALOGUE, made[2])
    return *made, data


def test_saved(rng, tmp_path):
    model, head, *_, data = trained_towers(rng)
    model.save(tmp_path / "model.keras")
    trained = keras.models.load_model(tmp_path / "model.keras")
    (again,) = [layer for layer in trained.layers if isinstance(layer, kl.layers.Retrieval)]
    assert again.num_items == ITEMS and again.get_config() == head.get_config()
    np.testing.assert_array_equal(again.kernel.numpy(), head.kernel.numpy())
    model.save_weights(tmp_path / "model.weights.h5")
    fresh, fresh_head, *_ = towers(normalize=True, temperature=0.1, cache=9)  # without an index yet
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(fresh_head.kernel.numpy(), head.kernel.numpy())
    checkpoint = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    fresh, fresh_head, *_ = towers(normalize=True, temperature=0.1, cache=9)
    with pytest.raises(ValueError, match="`num_items` of the head 'head' must be given"):
        tf.train.Checkpoint(model=fresh).restore(checkpoint)
    fresh, fresh_head, *_ = towers(normalize=True, temperature=0.1, cache=9, num_items=ITEMS)
    tf.train.Checkpoint(model=fresh).restore(checkpoint)
    np.testing.assert_array_equal(fresh_head.kernel.numpy(), head.kernel.numpy())
    assert fit(trained, data, BATCH) == pytest.approx(fit(model, data, BATCH), rel=1e-5)


def test_predictor_saved_and_exported(rng, tmp_path):
    _, head, _, queries, _ = trained_towers(rng)
    seen = keras.Input((3,), dtype="int32", name="seen")
    predictor = head.predictor(queries, k=5, exclude=seen)
    users, exclude = np.arange(USERS), rng.integers(0, ITEMS, (USERS, 3)).astype("int32")
    want = predictor.predict([users, exclude], verbose=0)
    assert not np.any(want["ids"][:, :, None] == exclude[:, None])
    predictor.save(tmp_path / "predictor.keras")
    loaded = keras.models.load_model(tmp_path / "predictor.keras")
    np.testing.assert_array_equal(loaded.predict([users, exclude], verbose=0)["ids"], want["ids"])
    kl.export_saved_model(predictor, tmp_path / "export")
    assert b"Largeout" not in (tmp_path / "export/saved_model.pb").read_bytes()
    served = tf.saved_model.load(tmp_path / "export")
    got = served.serve([tf.constant(users, tf.int32), tf.constant(exclude)])
    np.testing.assert_array_equal(got["ids"], want["ids"])


@pytest.mark.parametrize(
    ("devices", "eager"), [(1, False), (1, True), pytest.param(2, False, marks=pytest.mark.full)]
)
def test_metrics_in_fit(rng, devices, eager):
    """Several positives, seen items left out, an index of the weights after the epoch."""
    metrics = [kl.metrics.RecallAtK(5), kl.metrics.NDCGAtK(5)]
    model, head, item_tower, queries = towers(
        devices, exclude=True, compile_args={"metrics": metrics, "run_eagerly": eager}
    )
    x, y = pairs(rng, 2 * BATCH)
    x["seen"] = rng.integers(0, ITEMS, (2 * BATCH, 4))
    lists = rng.integers(0, ITEMS, (2 * BATCH, 3))
    lists[:5, 1:] = -1
    index = kl.callbacks.IndexItems(head, CATALOGUE, item_tower)
    logs = model.fit(
        x, y, batch_size=BATCH, verbose=0, epochs=2, validation_data=(x, lists), callbacks=[index]
    )
    np.testing.assert_allclose(head.kernel.numpy(), item_tower.predict(CATALOGUE, verbose=0), rtol=1e-6)
    hidden = queries.predict(x["user"], verbose=0)
    best = head.top_k(hidden, 5, exclude=x["seen"])[1]
    for metric in metrics:
        metric.reset_state()
        metric.update_state(lists, best)
        assert logs.history[f"val_{metric.name}"][-1] == pytest.approx(float(metric.result()), rel=1e-6)
    log_p = head.log_probs(hidden).numpy()
    want = np.mean([-np.mean(row[own[own >= 0]]) for row, own in zip(log_p, lists)])
    assert logs.history["val_loss"][-1] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_items": 0}, "num_items|num_classes"),
        ({"temperature": 0}, "`temperature` must be positive"),
        ({"counts": "stream", "num_items": 3}, '`counts` must be None, an array .* "streaming"'),
        ({"counts": "streaming"}, "with `num_items`"),
        ({"counts": [1, 2], "num_items": 3}, "`counts` must have the shape"),
        ({"cache": -1}, "`cache` must be an integer of at least 0"),
    ],
)
def test_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        kl.layers.Retrieval(**options)


def test_calls(rng):
    users, items, y = batch(rng)
    head = kl.layers.Retrieval(ITEMS)
    with pytest.raises(ValueError, match="has no weights yet"):
        head.index(np.zeros([3, DIM]))
    with pytest.raises(ValueError, match="`item_vectors` must have the shape of the user vectors"):
        head(tf.constant(users), tf.constant(items[:, :2]))
    with pytest.raises(ValueError, match="`item_vectors` must be given with"):
        head(tf.constant(users), hard_negatives=tf.constant(items[:, None]))
    with pytest.raises(ValueError, match="`y_true` must be one id for each row in training"):
        losses_of(head, users, np.stack([y, y], axis=1), items)
    with pytest.raises(ValueError, match="`negative_ids` must be given"):
        head(tf.constant(users), tf.constant(items), negatives=tf.constant(items))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`y_true` must be in \[0, 30\)"):
        losses_of(head, users, y + ITEMS, items)
    for vectors, ids, words in (
        (np.zeros([3, 2]), None, "vectors of the length 6"),
        (np.arange(3), None, "must be vectors .* where `model`, the item tower, is not given"),
        (np.zeros([3, DIM]), [0, 1, 1], "different integers from 0 on"),
        (np.zeros([3, DIM]), [0, 1, ITEMS], "ids below num_items=30. .* room for later items"),
        (np.zeros([3, DIM]), [0.0, 1.0, 2.0], "an integer for each item"),
    ):
        with pytest.raises(ValueError, match=words):
            head.index(vectors, ids=ids)
    with pytest.raises(ValueError, match="`head` must be a Retrieval"):
        kl.callbacks.IndexItems(kl.layers.FullSoftmax(3), None)
