"""Parts of the two-tower example, checked by a program: TensorFlow Recommenders needs its own process.

python tests/examples/_two_tower_checks.py
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import _towers

# isort: split
import numpy as np
from _next_item.sequences import index

ITEMS = 60


def sequences(users=40):
    rng = np.random.default_rng(0)
    found = {user: rng.choice(ITEMS, rng.integers(5, 20), replace=False).tolist() for user in range(users)}
    return index("some", found)


def check_pairs(data):
    """Each known item of each user once; never in the history that is read with it; nothing held out."""
    known = sorted((user, item) for user, items in enumerate(data.users) for item in items[:-2])
    found, share = [], {}
    for batch in _towers.pairs(data, 8, 1, 0).as_numpy_iterator():
        ((user, history, item),) = zip(*(batch[key] for key in ("user", "history", "item")))
        assert item not in history and set(history) - {-1} <= set(data.users[user][:-2])
        assert np.count_nonzero(history >= 0) >= min(len(data.users[user]) - 3, 7)
        found.append((user, item))
        share[item] = batch["share"][0]
    assert sorted(found) == known
    np.testing.assert_allclose(sum(share.values()), 1, rtol=1e-5)


def check_towers(data):
    """The two kinds of layers give the same vectors from the same tables; padding counts for nothing."""
    held_out = data.held_out(1)
    inputs = _towers.inputs_of(held_out, 8)
    models = [_towers.build(len(data.users), len(data.counts), 8, 4, kind) for kind in ("ours", "keras")]
    for tower in ("query", "item"):
        ours, keras_own = (getattr(model, tower) for model in models)
        keras_own.set_weights(ours.get_weights())
        given = inputs if tower == "query" else held_out[2]
        np.testing.assert_allclose(ours(given), keras_own(given), atol=1e-6)
    (user,), history = inputs["user"][:1], held_out[1][0]
    users, items = models[0].query.get_weights()
    assert users.shape == (len(data.users), 4)
    vector = users[user] + items[history[-8:]].mean(axis=0)
    np.testing.assert_allclose(models[0].query(inputs)[0], vector, atol=1e-6)


def check_evaluate(data):
    """As NumPy counts it, however the users are cut into batches."""
    model = _towers.build(len(data.users), len(data.counts), 8, 4, first=1.0)
    held_out = data.held_out(1)
    scores = model.query(_towers.inputs_of(held_out, 8)).numpy() @ model.item.get_weights()[0].T
    _, histories, found = held_out
    without = scores.copy()
    for row, history in zip(without, histories):
        row[history] = -np.inf
    expected = {}
    for name, table in (("all", scores), ("Recall", without)):
        better = (table > table[np.arange(len(found)), found][:, None]).sum(axis=1)
        expected |= {f"{name}@{k}": np.mean(better < k) for k in _towers.KS}
    for most in (1, 2000, 2**25):
        measured = _towers.evaluate(model, held_out, 8, len(data.counts), most)
        assert measured.keys() == expected.keys()
        np.testing.assert_allclose([measured[key] for key in expected], list(expected.values()), atol=1e-6)
    best = _towers.recommender(model, len(data.counts))(_towers.inputs_of(held_out, 8))["ids"].numpy()
    for ids, history in zip(best, histories):
        assert not set(ids) & set(history[-8:])


def check_loss(data):
    """In-batch softmax with logQ, accidental hits left out."""
    model = _towers.build(len(data.users), len(data.counts), 8, 4, first=1.0, temperature=0.5)
    batch = next(iter(_towers.pairs(data, 8, 32, 0)))
    query, item = model(batch)
    loss = model.compute_loss(batch, y_pred=(query, item))
    scores = query.numpy() @ item.numpy().T / 0.5 - np.log(batch["share"].numpy())
    ids = batch["item"].numpy()
    scores[(ids[:, None] == ids) & ~np.eye(len(ids), dtype=bool)] = -np.inf
    expected = np.mean(np.log(np.exp(scores).sum(axis=1)) - np.diag(scores))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


if __name__ == "__main__":
    some = sequences()
    for check in (check_pairs, check_towers, check_evaluate, check_loss):
        check(some)
    print("all checks passed")
