"""`benchmarks.quality`: its table, its picture, and what happens if a row fails."""

import gzip
import importlib
import types

import keras
import numpy as np
import pytest
from _pictures import check_legible

from benchmarks.quality import __main__ as command

FOUND = {
    "ours": {"P@1": 45.3, "words/s": 38_000.0, "loss": "0x1p-2", "course": [(10, 20.0), (20, 45.3)]},
    "base rate": {"P@1": 7.1},
}


@pytest.fixture
def rows(monkeypatch):
    """Rows without their processes; "broken" fails."""
    table = types.SimpleNamespace(ROWS=(*FOUND, "broken"), COURSE=("seconds", "P@1"))
    monkeypatch.setattr(command.importlib, "import_module", lambda name: table)
    monkeypatch.setattr(command, "run_apart", lambda table, row, argv: FOUND.get(row))


def test_table_and_exit_status(rows, capsys, tmp_path):
    path = tmp_path / "quality.md"
    assert command.main(["ranking", "--quick", "--markdown", str(path)]) == 1
    said = capsys.readouterr()
    assert "failed: broken" in said.err
    assert [line.split()[-3:] for line in said.out.splitlines() if line.startswith(("ours", "base"))] == [
        ["45.3", "38,000", "0x1p-2"],
        ["7.1", "-", "-"],
    ]
    assert path.read_text().splitlines()[2] == "| ours | 45.3 | 38,000 | 0x1p-2 |"
    assert command.main(["ranking", "--only", "our"]) == 0


def test_the_picture_is_legible(figures, tmp_path):
    found = {f"row {i}": {"course": [(10 * j, 20 + i + j) for j in range(5)]} for i in range(8)}
    command.draw(tmp_path / "table.png", found, ("seconds of training", "P@1"))
    check_legible(figures[-1])
    (axes,) = figures[-1].axes
    assert len({line.get_marker() for line in axes.lines}) == 8  # not by colour alone


@pytest.fixture
def table(monkeypatch):
    """The module of a table."""
    monkeypatch.syspath_prepend(str(command.EXAMPLES))
    return lambda name: importlib.import_module(f"benchmarks.quality.{name}")


@pytest.fixture
def gowalla(table):
    return table("gowalla")


@pytest.fixture
def penn_treebank(table):
    return table("penn_treebank")


@pytest.mark.parametrize(("row", "users_are"), [("softmax", "means"), ("contrastive", "rows")])
def test_measures_of_gowalla_are_those_of_lightgcn(gowalla, rng, row, users_are):
    """Sets of items and float64, user by user: what a user has is left out, and who has no test item."""
    users = [rng.permutation(40)[: 3 + user % 9] for user in range(30)]
    train, test = [np.int32(user[2:]) for user in users], [np.int32(user[:2]) for user in users]
    test[4], test[7] = test[4][:0], np.setdiff1d(np.arange(40), train[7]).astype(np.int32)
    args = gowalla.arguments(["--quick", "--users", users_are], row)
    model, head = gowalla.example.build(args, 0, train, 40, steps=10)
    had = gowalla._common.padded(train)
    vectors, kernel = (
        model.predict({"user": np.arange(30), "items": had}, verbose=0).astype(np.float64),
        head.kernel.numpy(),
    )
    scores = vectors @ (kernel / np.linalg.norm(kernel, axis=1, keepdims=True)).T
    recalls, gains = [], []
    for user in range(30):
        if not len(test[user]):
            continue
        best = [item for item in np.argsort(-scores[user]) if item not in set(train[user])][:5]
        hits = np.isin(best, test[user])
        recalls.append(hits.sum() / len(test[user]))
        first = 1 / np.log2(np.arange(2, 2 + min(5, len(test[user]))))
        gains.append((hits / np.log2(np.arange(2, 7))).sum() / first.sum())
    found = gowalla.example.measure(model, head, train, test, k=5)
    assert found == pytest.approx(
        {"Recall@5": 100 * np.mean(recalls), "NDCG@5": 100 * np.mean(gains)}, rel=1e-5
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_gowalla_is_tuned_on_validation_items(gowalla, tmp_path, compressed):
    sides = {"train": "0 1 2 3\n1 4 5\n", "valid": "0 6\n", "test": "0 7\n1 8\n"}
    for side, text in sides.items():
        path = tmp_path / f"{side}.txt{'.gz' * compressed}"
        path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())

    def read(*more):
        train, test, items = gowalla.read(gowalla.arguments(["--data", str(tmp_path), *more]))
        return [sorted(own.tolist()) for own in train], [own.tolist() for own in test], items

    assert read() == ([[1, 2, 3, 6], [4, 5]], [[7], [8]], 9)
    assert read("--tune") == ([[1, 2, 3], [4, 5]], [[6], []], 9)


def test_batches_of_gowalla_have_all_items_as_targets(gowalla):
    users = [np.arange(user % 5, dtype=np.int32) + 5 * user for user in range(50)]
    args = gowalla.arguments(["--quick", "--dropout", "0.5", "--power", "0.5"])
    args.batch = 20
    batches = gowalla.example.Batches(args, users, seed=1)
    seen, weights, dropped = [], [], 0
    for given, wanted, weight in batches:
        for user, had, items in zip(given["user"], given["items"], wanted):
            items = items[items >= 0].tolist()
            assert items == users[user].tolist()
            assert set(had[had >= 0]) <= set(items)
            dropped += len(items) - (had >= 0).sum()
            seen.append(tuple(items))
        weights += (weight / np.sqrt((wanted >= 0).sum(axis=1))).tolist()
    assert set(seen) == {tuple(items.tolist()) for items in users if len(items)}
    assert len(seen) == len(set(seen)) == 40 and dropped > 0
    np.testing.assert_allclose(weights, weights[0], rtol=1e-5)


def test_windows_of_penn_treebank_go_on_where_the_last_ended(penn_treebank):
    args = penn_treebank.arguments(["--batch", "3", "--steps", "4"])
    text = np.arange(10, 41, dtype=np.int32)  # 31 words: 2 windows of 4 words of 3 streams
    read, wanted = (np.concatenate(side, axis=1) for side in zip(*penn_treebank.windows(args, text)))
    assert wanted.tolist() == [list(range(begin, begin + 8)) for begin in (10, 18, 26)]
    assert read[:, 1:].tolist() == wanted[:, :-1].tolist()
    assert read[:, 0].tolist() == [penn_treebank.example.END - 1, 17, 25]


def test_training_of_penn_treebank(penn_treebank):
    """The learning rate of each epoch, states that end with a text, and a loss that is summed."""
    args = penn_treebank.arguments(["--batch", "2", "--steps", "3", "--units", "4"])
    text = np.arange(24, dtype=np.int32) % 5
    data, rates = penn_treebank.windows(args, text), []
    model = penn_treebank.build(args, "full", np.ones(5), text)
    course = penn_treebank.Course(args)
    course.set_model(model)
    for epoch in range(7):
        course.on_epoch_begin(epoch)
        rates.append(float(model.optimizer.learning_rate))
    assert rates == [1, 1, 1, 1, 1 / 2, 1 / 4, 1 / 8]
    first, again = (model.evaluate(data, callbacks=[course], verbose=0) for _ in range(2))
    assert first == again == pytest.approx(3 * np.log(5), rel=0.02)
    assert model.evaluate(data, verbose=0) != again  # with the states of the end
    assert course.perplexity(first) == pytest.approx(np.exp(first / 3))


def test_training_of_frappe_ends_with_the_best_weights(table, tmp_path, monkeypatch):
    """After each epoch without a better AUC a tenth of the rate; two in a row end the training."""
    frappe = table("frappe")
    args = frappe.arguments(["--quick", "--epochs", "9"])
    (ids, labels), valid, _ = frappe.read(args)
    model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    scores, after, rates = iter([0.6, 0.7, 0.65, 0.71, 0.7, 0.7]), [], []
    monkeypatch.setattr(frappe, "roc_auc_score", lambda *_: next(scores))
    best = frappe.BestInValidation(valid, args.batch, course := [])

    def note(epoch, logs):
        after.append(model.get_weights()[0])
        rates.append(float(model.optimizer.learning_rate))

    told = keras.callbacks.LambdaCallback(on_epoch_end=note)
    model.fit(ids, labels, epochs=9, verbose=0, callbacks=[told, best])
    assert [score for _, score in course] == pytest.approx([60, 70, 65, 71, 70, 70])
    assert rates == pytest.approx([1e-6, 1e-6, 1e-6, 1e-7, 1e-7, 1e-8])  # of the epoch that ended
    np.testing.assert_array_equal(model.get_weights()[0], after[3])


def test_rows_of_frappe(table, tmp_path):
    path = tmp_path / "train.libsvm"
    path.write_text("1 0:1 957:1 5039:1\n-1 956:1 5038:1 5045:1\n0 3:1 960:1 5040:1\n")
    ids, labels = table("frappe").read_libsvm(path)
    assert ids.tolist() == [[0, 957, 5039], [956, 5038, 5045], [3, 960, 5040]]
    assert labels.tolist() == [1, 0, 0]


def test_rows_that_do_not_go_with_an_option_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr(command, "run_apart", lambda table, row, rest: {"options": " ".join(rest)})
    assert command.main(["next_item", "--tied", "--only", "tree", "--only", "full"]) == 0
    found = capsys.readouterr().out
    assert "left out: tree, which does not go with --tied" in found and "full  --tied" in found
