"""What `compile` must not be given goes by unnoticed nowhere: an error or a warning says what to write."""

import warnings

import keras
import numpy as np
import pytest

import keras_largeout as kl

CLASSES, DIM = 9, 5
X, Y = np.ones((4, 3), "float32"), np.arange(4)


def head_of(kind="tree", name="head"):
    if kind == "tree":
        return kl.layers.HierarchicalSoftmax(CLASSES, counts=np.ones(CLASSES), name=name)
    return kl.layers.SparseOutput(CLASSES, 2, loss="softmax", name=name)


def functional(base=kl.Model, kind="tree"):
    x = keras.Input((3,))
    head = head_of(kind)
    return base(x, head(keras.layers.Dense(DIM)(x))), head


def sequential(base=kl.Sequential, built=True):
    head = head_of()
    return base([keras.Input((3,))] * built + [keras.layers.Dense(DIM), head]), head


def subclassed(base=kl.Model):
    class Sub(base):
        def __init__(self):
            super().__init__()
            self.dense, self.head = keras.layers.Dense(DIM), head_of()

        def call(self, x):
            return self.head(self.dense(x))

    model = Sub()
    return model, model.head


MODELS = {
    "kl.Model": functional,
    "kl.Model, sparse": lambda: functional(kind="sparse"),
    "kl.Sequential": sequential,
    "kl.Sequential, not built": lambda: sequential(built=False),
    "kl.Model, subclassed": subclassed,
    "keras.Model": lambda: functional(keras.Model),
    "keras.Sequential": lambda: sequential(keras.Sequential),
    "keras.Sequential, not built": lambda: sequential(keras.Sequential, built=False),
}
AT_COMPILE = ("kl.Model", "kl.Model, sparse", "kl.Sequential")
SCORES = "hidden vectors and no scores of classes: write `loss=head.loss`. Received: loss="
WRONG_LOSSES = {
    "name": (lambda head: "sparse_categorical_crossentropy", SCORES + "'sparse_categorical_crossentropy'"),
    "mse": (lambda head: "mse", SCORES + "'mse'"),
    "function": (lambda head: keras.losses.mean_squared_error, SCORES + "mean_squared_error"),
    "object": (lambda head: keras.losses.CategoricalCrossentropy(), SCORES + "CategoricalCrossentropy"),
    "list": (lambda head: ["mse"], SCORES + "'mse'"),
    "head": (lambda head: head, "`loss` must be a loss, not a layer: write `loss=head.loss`. Received: the"),
    "method": (lambda head: head.make_loss, "`loss` must be a loss, not a layer: write `loss=head.loss`"),
}


def refused(made, message, **arguments):
    model, head = MODELS[made]()
    with pytest.raises(ValueError) as raised:
        model.compile("sgd", **{key: value(head) for key, value in arguments.items()})
        assert made not in AT_COMPILE, "compile has let it pass"
        model.fit(X, Y, verbose=0)
    assert message in str(raised.value)


@pytest.mark.parametrize("made", MODELS)
@pytest.mark.parametrize("wrong", ["name", "head"])
def test_a_loss_that_takes_hidden_vectors_for_scores(made, wrong):
    loss, message = WRONG_LOSSES[wrong]
    refused(made, message, loss=loss)


@pytest.mark.parametrize("wrong", sorted(set(WRONG_LOSSES) - {"name", "head"}))
def test_other_wrong_losses(wrong):
    loss, message = WRONG_LOSSES[wrong]
    refused("kl.Model", message, loss=loss)


@pytest.mark.parametrize("made", MODELS)
def test_a_metric_that_takes_hidden_vectors_for_scores(made):
    message = "`metrics` for the output of the head 'head' must be made for hidden vectors"
    refused(made, message, loss=lambda head: head.loss, metrics=lambda head: ["accuracy"])


@pytest.mark.parametrize(
    "metric",
    [keras.metrics.SparseTopKCategoricalAccuracy(3), keras.metrics.sparse_categorical_accuracy, "ce"],
)
def test_other_wrong_metrics(metric):
    message = "`kl.metrics.TopKAccuracy(k)` and the others of `kl.metrics` find the head. Received: "
    refused("kl.Model", message, loss=lambda head: head.loss, weighted_metrics=lambda head: [metric])


def mine(y_true, hidden):
    return keras.ops.mean(keras.ops.square(hidden), -1)


@pytest.mark.parametrize("made", MODELS)
def test_what_is_made_for_hidden_vectors_passes(made):
    model, head = MODELS[made]()
    wrapped = keras.metrics.MeanMetricWrapper(mine, name="wrapped")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile("sgd", head.loss, metrics=[mine, wrapped])
        model.fit(X, Y, verbose=0)
        model.compile("sgd", mine)
        model.evaluate(X, Y, verbose=0)


def test_a_subclassed_keras_model_is_warned():
    model, head = subclassed(keras.Model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.warns(UserWarning, match=r"write `loss=head\.loss`"):
        model.fit(X, Y, verbose=0)
    model.compile("sgd", head)
    with pytest.raises(ValueError, match="`loss` must be a loss, not a layer"):
        model.fit(X, Y, verbose=0)


def two_outputs(base=kl.Model):
    x = keras.Input((3,))
    hidden = keras.layers.Dense(DIM)(x)
    head = head_of()
    return base(x, {"other": keras.layers.Dense(1, name="other")(x), "head": head(hidden)}), head


@pytest.mark.parametrize("base", [kl.Model, keras.Model])
def test_each_output_by_itself(base):
    model, head = two_outputs(base)
    y = {"other": X[:, :1], "head": Y}
    model.compile("sgd", {"other": "mse", "head": head.loss}, metrics={"other": ["mae"]})
    model.fit(X, y, verbose=0)
    for loss, metrics in (("mse", None), ({"other": "mse", "head": "mse"}, None)):
        with pytest.raises(ValueError, match=r"write `loss=head\.loss`"):
            model.compile("sgd", loss, metrics=metrics)
            model.fit(X, y, verbose=0)
    with pytest.raises(ValueError, match="for the output of the head 'head'"):
        model.compile("sgd", {"other": "mse", "head": head.loss}, metrics={"head": "accuracy"})
        model.fit(X, y, verbose=0)


def test_a_head_within_a_model_may_be_anything():
    x = keras.Input((3,))
    model = kl.Model(x, keras.layers.Dense(1)(head_of()(keras.layers.Dense(DIM)(x))))
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(X, X[:, :1], verbose=0)


BEHIND = {
    "activation": keras.layers.Activation("softmax"),
    "lambda": keras.layers.Lambda(lambda h: 2 * h),
    "reshape": keras.layers.Reshape((DIM, 2)),
    "slice": lambda h: h[:, :3],
    "several": lambda h: keras.ops.relu(keras.layers.Reshape((2, DIM))(h)[:, -1]) + 1.0,
    "model": lambda h: keras.Sequential([keras.Input(h.shape[1:]), keras.layers.Flatten()])(h),
}


class Behind(kl.Model):
    def __init__(self, behind):
        super().__init__()
        self.layers_before = [keras.layers.Dense(2 * DIM), head_of()]
        self.behind = behind

    def call(self, x):
        for layer in self.layers_before:
            x = layer(x)
        return self.behind(x)


def behind(base, then):
    if base is Behind:
        return Behind(then)
    x = keras.Input((3,))
    return base(x, then(head_of()(keras.layers.Dense(2 * DIM)(x))))


@pytest.mark.parametrize("base", [kl.Model, keras.Model, Behind])
@pytest.mark.parametrize("then", BEHIND)
def test_layers_without_weights_behind_a_head(base, then):
    if (base, then) == (Behind, "model"):
        pytest.skip("its weights are those of a layer made in a call")
    for wrong in ({"loss": "sparse_categorical_crossentropy"}, {"loss": mine, "metrics": ["accuracy"]}):
        model = behind(base, BEHIND[then])
        with pytest.raises(ValueError, match=r"head 'head'.* hidden vectors"):
            model.compile("sgd", **wrong)
            assert base is not kl.Model, "compile has let it pass"
            model.fit(X, Y, verbose=0)


def test_a_model_with_a_head_within_another():
    inner, _ = functional(keras.Model)
    x = keras.Input((3,))
    with pytest.raises(ValueError, match=r"write `loss=head\.loss`"):
        kl.Model(x, keras.layers.Activation("softmax")(inner(x))).compile("sgd", "mse")


SCORED = {
    "weights": keras.layers.Dense(2),
    "length": keras.layers.Lambda(lambda h: keras.ops.sum(h * h, -1, keepdims=True)),
    "scores": lambda h: keras.layers.Lambda(lambda h: h @ keras.ops.ones((2 * DIM, CLASSES)))(h),
    "other vectors": lambda h: keras.layers.Dot(-1)([h, keras.layers.Dense(2 * DIM)(h)]),
}


@pytest.mark.parametrize("base", [kl.Model, keras.Model, Behind])
@pytest.mark.parametrize("then", SCORED)
def test_what_is_made_of_hidden_vectors_may_be_scores(base, then):
    if base is Behind and then == "other vectors":
        pytest.skip("a layer made in a call")
    model = behind(base, SCORED[then])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*head.loss")
        model.compile("sgd", "mse", metrics=["mae"])
        model.fit(X, X[:, :1], verbose=0)


@pytest.mark.parametrize("base", [kl.Model, keras.Model])
def test_hidden_vectors_that_feed_another_output(base):
    x = keras.Input((3,))
    hidden, head = keras.layers.Dense(DIM)(x), head_of()
    model = base(x, [keras.layers.Dense(CLASSES)(hidden), head(hidden)])
    loss = "sparse_categorical_crossentropy"
    model.compile("sgd", [loss, head.loss], metrics=[["accuracy"], []])
    model.fit(X, [Y, Y], verbose=0)


@pytest.mark.parametrize("base", [kl.Model, keras.Model])
def test_a_clone_with_the_loss_of_its_original(base):
    model, head = functional(base)
    clone = keras.models.clone_model(model)
    with pytest.raises(ValueError, match=r"would train the head 'head' of another model.*get_layer"):
        clone.compile("sgd", head.loss)
        assert base is keras.Model
        clone.fit(X, Y, verbose=0)
    clone.compile("sgd", clone.get_layer("head").loss)
    clone.fit(X, Y, verbose=0)


@pytest.mark.parametrize("optimizer", ["sgd", None])
def test_a_scheduler_that_does_not_reach_a_layer(optimizer):
    x = keras.Input((3,))
    head = kl.layers.SparseOutput(CLASSES, 2, optimizer=optimizer, name="labels")
    model = kl.Model(x, head(keras.layers.Dense(DIM)(x)))
    model.compile(keras.optimizers.SGD(0.1), head.loss)
    stop, schedule = (
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LearningRateScheduler(lambda e, r: r / 2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(X, Y, verbose=0, callbacks=[stop])
        if optimizer is None:
            model.fit(X, Y, verbose=0, callbacks=[schedule])
            return
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    with pytest.warns(UserWarning, match=r"^LearningRateScheduler and ReduceLROnPlateau .* train 'labels'"):
        model.fit(X, Y, verbose=0, callbacks=[schedule, plateau])
    assert float(head.optimizer.learning_rate) == pytest.approx(0.01)


def test_a_summary_says_what_the_numbers_are():
    x = keras.Input((3,))
    hidden = keras.layers.Dense(DIM)(x)
    tree, labels = head_of(), kl.layers.SparseOutput(CLASSES, 2, optimizer="sgd", name="labels")
    model, lines = kl.Model(x, [tree(hidden), labels(hidden)]), []
    model.summary(print_fn=lines.append)
    integers = sum(w.numpy().size for w in tree.non_trainable_weights)
    rows = tree.num_rows
    assert f" head: {rows * (DIM + 1)} weights, {integers} integers (its tree, its connections)" in lines
    own = "27 weights trained by an optimizer of the layer's own (they count as non-trainable above)"
    assert f" labels: {own}, 18 integers (its tree, its connections)" in lines
    keras.Sequential([x, keras.layers.Dense(1)]).summary(print_fn=lines.append)
    predictor = tree.predictor(model, k=2)
    assert predictor.layers[-1].count_params() == 0 and len(predictor.layers[-1].weights) > 0
    plain = kl.Model(x, hidden)
    plain.summary(80, None, lines.append)


# Optimizers.


def embedding(rows, dim, base, **options):
    ids = keras.Input((1,), dtype="int32")
    table = kl.layers.ShardedEmbedding(rows, dim, combiner="sum", name="words", **options)
    return base(ids, table(ids))


IDS = np.ones((2, 1), "int32")


@pytest.mark.parametrize("base", [kl.Model, keras.Model])
@pytest.mark.parametrize(("rows", "dim"), [(100_000, 1), (9000, 500)])
def test_a_stock_optimizer_on_a_large_table_is_worth_one_warning(base, rows, dim):
    model = embedding(rows, dim, base)
    message = rf"optimizers\.Adam updates all {rows:,} rows of words/embeddings in every .*\.LazyAdam updates"
    with pytest.warns(UserWarning, match=message) as warned:
        model.compile("adam", "mse")
        model.train_on_batch(IDS, np.ones((2, dim)))
        model.evaluate(IDS, np.ones((2, dim)), verbose=0)
    assert len([w for w in warned if "updates all" in str(w.message)]) == 1
    with pytest.warns(UserWarning, match=r"keras_largeout\.optimizers\.Adagrad or RowWiseAdagrad"):
        model.compile("adagrad", "mse")
        model.train_on_batch(IDS, np.ones((2, dim)))


def test_where_a_stock_optimizer_is_fine(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = embedding(1000, 8, kl.Model)
        small.compile("adam", "mse")
        small.train_on_batch(IDS, np.ones((2, 8)))
        large = embedding(100_000, 1, kl.Model)
        large.compile(kl.optimizers.LazyAdam(), "mse")
        large.train_on_batch(IDS, np.ones((2, 1)))
        frozen = embedding(100_000, 1, kl.Model, trainable=False)
        frozen.compile("adam", "mse")
        x = keras.Input((3,))
        labels = kl.layers.SparseOutput(100_000, 2)  # its gradient is dense
        model = kl.Model(x, labels(x))
        model.compile("adam", labels.loss)
        model.train_on_batch(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        large.compile("adam", "mse")
        large.train_on_batch(IDS, np.ones((2, 1)))
        large.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras.models.load_model(tmp_path / "model.keras").predict(IDS, verbose=0)
