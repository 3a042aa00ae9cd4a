"""`Rewire`: what is exchanged, when, and that it is the same in every run."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import needs_multi_optimizer

import keras_largeout as kl
from keras_largeout.callbacks.rewire import Rewire, gini
from keras_largeout.distribute.outputs.rewiring import slots_of
from keras_largeout.layers import SparseOutput

CLASSES, DIM, FAN_IN = 21, 30, 6


def _model(optimizer=None, own=None, loss="binary_crossentropy", **options):
    keras.utils.set_random_seed(1)
    x = keras.Input((8,))
    head = SparseOutput(CLASSES, FAN_IN, loss=loss, optimizer=own, seed=2)
    model = keras.Model(x, head(keras.layers.Dense(DIM, activation="relu")(x)))
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss=head.loss, **options)
    return model, head


def _data(rng, rows=64):
    x = rng.normal(size=(rows, 8)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, rng.integers(-1, CLASSES, (rows, 3)))).batch(8)


def _no_duplicates(head):
    return all(len(set(row)) == FAN_IN for row in head.connections.numpy().tolist())


class Snapshot(keras.callbacks.Callback):
    """Connections and kernel after each step."""

    def __init__(self, head):
        super().__init__()
        self.head, self.seen = head, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((self.head.connections.numpy(), self.head.kernel.numpy()))


def test_weakest_connections_move_and_start_at_zero(rng):
    model, head = _model()
    after, before = Snapshot(head), Snapshot(head)
    rewire = Rewire(head, fraction=0.34, every=3)
    history = model.fit(_data(rng), epochs=2, verbose=0, callbacks=[before, rewire, after]).history
    assert [entry["step"] for entry in rewire.history] == [3, 6, 9, 12, 15]
    assert all(entry["changed"] == 2 * CLASSES for entry in rewire.history)
    assert history["rewired"] == [4 * CLASSES, 6 * CLASSES]
    assert history["in_degree_gini"][-1] == pytest.approx(gini(head.in_degrees()))
    for step, (old, new) in enumerate(zip(before.seen, after.seen), start=1):
        changed = old[0] != new[0]
        if step % 3:
            assert not changed.any()
            continue
        assert np.all(changed.sum(1) == 2)
        assert np.all(new[1][changed] == 0)
        np.testing.assert_array_equal(new[1][~changed], old[1][~changed])
        largest_pruned = np.where(changed, np.abs(old[1]), 0).max(1)
        smallest_kept = np.where(changed, np.inf, np.abs(old[1])).min(1)
        assert np.all(largest_pruned <= smallest_kept)
    assert _no_duplicates(head)


def multi():
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.Adam()))


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam,
        kl.optimizers.LazyAdam,
        lambda: keras.optimizers.RMSprop(momentum=0.9),
        keras.optimizers.Nadam,
        pytest.param(multi, marks=needs_multi_optimizer),
        lambda: kl.optimizers.LazyAdam(gradient_accumulation_steps=2),
        None,
    ],
)
def test_moments_of_new_connections_are_zero(rng, optimizer):
    model, head = _model(optimizer and optimizer(), own=None if optimizer else "adam")
    model.fit(_data(rng), verbose=0)
    kept = slots_of(model.optimizer if optimizer else head.optimizer, head.kernel.shards[0])
    assert len(kept) >= 2
    assert all(np.count_nonzero(slot.numpy()) > 100 for slot in kept)
    before = head.connections.numpy()
    head.rewire(5, fraction=0.5, optimizer=model.optimizer)
    new = head.connections.numpy() != before
    assert np.all(new.sum(1) == 3)
    for slot in kept:
        assert np.all(slot.numpy()[new] == 0) and np.count_nonzero(slot.numpy()[~new]) > 50


def test_the_model_optimizers_moments_are_found(rng):
    model, head = _model(kl.optimizers.LazyAdam(0.01))
    snapshot = Snapshot(head)
    model.fit(_data(rng), verbose=0, callbacks=[Rewire(head, fraction=0.5, every=8), snapshot])
    new = snapshot.seen[-1][0] != snapshot.seen[-2][0]
    momentum, velocity = slots_of(model.optimizer, head.kernel.shards[0])
    assert new.sum() == 3 * CLASSES
    assert np.all(momentum.numpy()[new] == 0) and np.all(velocity.numpy()[new] == 0)


# Every pair of the three: what is pruned, what grows and who has the slots are decided apart from each other.
@pytest.mark.full
@pytest.mark.parametrize(
    ("prune", "grow", "own"),
    [
        ("magnitude", "random", None),
        ("magnitude", "gradient", "adam"),
        ("global_magnitude", "random", "adam"),
        ("global_magnitude", "gradient", None),
    ],
)
def test_the_same_in_every_run_and_learning_goes_on(rng, own, grow, prune):
    data, runs = _data(rng), []
    for _ in range(2):
        model, head = _model(own=own)
        rewire = Rewire(head, fraction=0.2, every=5, grow=grow, prune=prune)
        losses = model.fit(data, epochs=4, verbose=0, callbacks=[rewire]).history["loss"]
        runs.append((losses, head.connections.numpy(), head.kernel.numpy()))
        assert losses[-1] < losses[0] and _no_duplicates(head)
        if prune == "global_magnitude":
            total = int(0.2 * CLASSES * FAN_IN + 0.5)
            assert [entry["changed"] for entry in rewire.history] == [total] * 6
    assert runs[0][0] == runs[1][0]
    for a, b in zip(runs[0][1:], runs[1][1:]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("loss", ["binary_crossentropy", "squared_hinge"])
def test_growth_by_gradient_finds_the_input_that_matters(rng, loss):
    """Inputs 0 .. CLASSES - 1 say which labels there are; the others are noise."""
    labels = rng.integers(0, CLASSES, (256, 2))
    x = rng.normal(size=(256, DIM)).astype("float32") * 0.1
    np.put_along_axis(x, labels, 3.0, axis=1)
    found = {}
    for grow in ("random", "gradient"):
        inputs = keras.Input((DIM,))
        # Labels are improbable at first: what is missing is what makes them probable.
        start = {"kernel_initializer": "zeros", "bias_initializer": keras.initializers.Constant(-2.0)}
        own = keras.optimizers.SGD(0.3)
        head = SparseOutput(CLASSES, 3, loss=loss, optimizer=own, seed=2, **start)
        model = keras.Model(inputs, head(inputs))
        model.compile("sgd", loss=head.loss)
        rewire = Rewire(head, fraction=0.34, every=4, grow=grow, candidates=DIM)
        model.fit(x, labels, batch_size=64, epochs=4, verbose=0, shuffle=False, callbacks=[rewire])
        found[grow] = sum(c in row for c, row in enumerate(head.connections.numpy().tolist()))
    assert found["gradient"] == CLASSES > found["random"]


@pytest.mark.parametrize("grow", ["random", "gradient"])
def test_several_steps_an_execution(rng, grow):
    model, head = _model(steps_per_execution=4)
    rewire = Rewire(head, every=4, grow=grow)
    model.fit(_data(rng), epochs=2, verbose=0, callbacks=[rewire])
    assert [entry["step"] for entry in rewire.history] == [4, 8, 12, 16]


def test_a_loaded_model_goes_on_as_if_nothing_had_happened(tmp_path, rng):
    data = _data(rng)
    model, head = _model(own="adam")
    model.fit(data, verbose=0, callbacks=[Rewire(head, every=3)])
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    results = []
    for m in (model, loaded):
        losses = m.fit(data, epochs=2, verbose=0, callbacks=[Rewire(m.layers[-1], every=3)]).history["loss"]
        results.append((losses, m.layers[-1].connections.numpy()))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize(
    ("until", "steps"), [(7, [2, 4, 6]), (8, [2, 4, 6, 8]), (0.5, [2, 4, 6, 8]), (None, 8)]
)
def test_until(rng, until, steps):
    model, head = _model()
    rewire = Rewire(head, every=2, until=until)
    model.fit(_data(rng), epochs=2, verbose=0, callbacks=[rewire])
    seen = [entry["step"] for entry in rewire.history]
    assert len(seen) == steps if isinstance(steps, int) else seen == steps


def test_until_a_share_of_unknown_steps(rng):
    model, head = _model()
    data = tf.data.Dataset.from_generator(
        lambda: iter(_data(rng)),
        output_signature=_data(rng).element_spec,
    )
    with pytest.raises(ValueError, match="`until` must be a number of steps where"):
        model.fit(data, verbose=0, callbacks=[Rewire(head, until=0.5)])


def test_gini():
    assert gini([3, 3, 3]) == 0
    assert gini([0, 0, 0, 8]) == pytest.approx(0.75)
    assert gini([0, 0]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 0}, r"`fraction` must be in \(0, 1\]"),
        ({"fraction": 1.5}, r"`fraction` must be in \(0, 1\]"),
        ({"every": 0}, "`every` must be a positive integer"),
        ({"every": 2.5}, "`every` must be a positive integer"),
        ({"candidates": 0}, "`candidates` must be a positive integer"),
        ({"prune": "age"}, "`prune` must be one of"),
        ({"grow": "best"}, "`grow` must be one of"),
        ({"until": 0}, "`until` must be a positive number"),
        ({"until": 1.5}, "`until` must be a positive number"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Rewire(SparseOutput(5), **arguments)


def test_a_head_that_is_not_there(rng):
    with pytest.raises(ValueError, match="`head` must be a SparseOutput"):
        Rewire(keras.layers.Dense(3))
    model, _ = _model()
    with pytest.raises(ValueError, match="`head` must be a layer of the model"):
        model.fit(_data(rng), verbose=0, callbacks=[Rewire(SparseOutput(5, name="other"))])
    with pytest.raises(ValueError, match=r"has no connections yet: .* before `rewire`"):
        SparseOutput(5).rewire(1)


def test_growth_by_gradient_knows_the_label_weights(rng):
    """Two labels want different inputs at equal loss; label weights say which of them matters."""
    x = rng.normal(size=(64, DIM)).astype("float32")
    grown = []
    for weights in (None, np.where(np.arange(CLASSES) < 10, 50.0, 0.0)):
        head = SparseOutput(CLASSES, 3, loss="softmax", label_weights=weights, optimizer="sgd", seed=2)
        inputs = keras.Input((DIM,))
        model = keras.Model(inputs, head(inputs))
        model.compile("sgd", loss=head.loss)
        rewire = Rewire(head, fraction=0.34, every=1, grow="gradient", candidates=DIM)
        keeper = head.keep_batches()
        labels = np.repeat(np.arange(16)[:, None], 4, axis=0)
        model.fit(x, labels, batch_size=64, verbose=0, callbacks=[Keep(keeper), rewire])
        grown.append(head.connections.numpy())
        lists = Keep.seen.targets
        if weights is not None:
            np.testing.assert_array_equal(lists.weights, weights[lists.labels.numpy()].astype("float32"))
    assert (grown[0] != grown[1]).any()


class Keep(keras.callbacks.Callback):
    """Looks at the batch that is kept, before `Rewire` clears it."""

    seen = None

    def __init__(self, keeper):
        super().__init__()
        self.keeper = keeper

    def on_train_batch_end(self, batch, logs=None):
        Keep.seen = self.keeper.batch()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_bfloat16_weights_and_kerass_own_slots(rng, optimizer):
    keras.utils.set_random_seed(1)
    x = keras.Input((8,))
    head = SparseOutput(CLASSES, FAN_IN, seed=2, dtype="bfloat16")
    model = keras.Model(x, head(keras.layers.Dense(DIM, activation="relu")(x)))
    model.compile(optimizer, loss=head.loss)
    snapshot = Snapshot(head)
    model.fit(_data(rng), verbose=0, callbacks=[Rewire(head, fraction=0.5, every=8), snapshot])
    new = snapshot.seen[-1][0] != snapshot.seen[-2][0]
    assert new.sum() == 3 * CLASSES
    for slot in slots_of(model.optimizer, head.kernel.shards[0]):
        assert slot.dtype == tf.bfloat16
        assert np.all(slot.numpy()[new] == 0) and np.count_nonzero(slot.numpy()[~new]) > 50


@pytest.mark.full
@pytest.mark.parametrize("first", ["rewire", "backup"])
@pytest.mark.parametrize("until", [None, 0.5])
def test_a_resumed_training_rewires_when_the_whole_one_does(rng, tmp_path, first, until):
    data, steps, ends = _data(rng), [], []

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    for parts in (1, 2):
        seen = []
        for part in range(parts):
            model, head = _model(own="adam")
            rewire = Rewire(head, fraction=0.34, every=3, until=until)
            callbacks = [rewire, keras.callbacks.BackupAndRestore(tmp_path / str(parts))]
            callbacks = callbacks if first == "rewire" else callbacks[::-1]
            if parts == 2 and part == 0:
                with pytest.raises(KeyboardInterrupt):
                    model.fit(data, epochs=4, verbose=0, callbacks=[*callbacks, Stop()])
            else:
                model.fit(data, epochs=4, verbose=0, callbacks=callbacks)
            seen += [entry["step"] for entry in rewire.history]
        steps.append(seen)
        ends.append((head.connections.numpy(), head.kernel.numpy()))
    assert steps[0] == steps[1] == list(range(3, 33 if until is None else 17, 3))
    for a, b in zip(*ends):
        np.testing.assert_array_equal(a, b)


def test_until_a_share_counts_updates_where_gradients_are_accumulated(rng):
    model, head = _model(kl.optimizers.LazyAdam(gradient_accumulation_steps=2))
    rewire = Rewire(head, every=2, until=0.5)
    model.fit(_data(rng), epochs=2, verbose=0, callbacks=[rewire])  # 16 batches, 8 updates
    assert [entry["step"] for entry in rewire.history] == [2, 4]


def test_a_frozen_head_and_too_small_a_fraction(rng):
    model, head = _model()
    head.trainable = False
    model.compile("sgd", loss=head.loss)
    with pytest.raises(ValueError, match="`head` must be trainable"):
        model.fit(_data(rng), verbose=0, callbacks=[Rewire(head)])
    with pytest.raises(ValueError, match=r"`fraction` must be at least half a connection .* fan_in=4"):
        Rewire(SparseOutput(5, fan_in=4), fraction=0.1)
    assert Rewire(SparseOutput(5, fan_in=4), fraction=0.1, prune="global_magnitude").fraction == 0.1


@pytest.mark.parametrize("until", ["x", True, np.float32(0.5), np.int64(3), 0.0, -1])
def test_types_of_until(until):
    if isinstance(until, (np.float32, np.int64)):
        assert Rewire(SparseOutput(5), until=until).until == until
    else:
        with pytest.raises(ValueError, match="`until` must be a positive number"):
            Rewire(SparseOutput(5), until=until)
