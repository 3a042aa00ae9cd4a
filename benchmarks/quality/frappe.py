"""Frappe: will a user take this app now? DCN-v2 beside published numbers, FuxiCTR and regression.

`--data FOLDER`: `train.libsvm`, `valid.libsvm` and `test.libsvm` of
[AFN](https://github.com/WeiyuCheng/AFN-AAAI-20/tree/master/data/frappe), the split of the published numbers.
Each row has ten features of one id each: a user, an app, and what was known of the moment. Models are trained
as [BARS](https://github.com/reczoo/BARS/tree/main/ranking/ctr/DCNv2/DCNv2_frappe_x1) trains its own: an epoch
without a better AUC in validation divides the learning rate by ten, a second one in a row ends the training.
"""

import os
import tempfile
import time

import _common
import keras
import numpy as np
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import keras_largeout as kl

#: Of the test, in the table of Frappe_x1 of [BARS](https://arxiv.org/abs/2205.09626).
DCN, LOGISTIC = {"AUC, %": 98.45, "log loss": 0.1491}, {"AUC, %": 93.56, "log loss": 0.3076}
PUBLISHED = {"DCN-v2": DCN, "FuxiCTR's DCN-v2": DCN, "logistic regression": LOGISTIC}
ROWS = (*PUBLISHED, "Vowpal Wabbit")
NEEDS = {"FuxiCTR's DCN-v2": "fuxictr", "Vowpal Wabbit": "vowpalwabbit"}
#: Defaults of a row that differ from ours: what BARS found for its DCN-v2; one seed where nothing is drawn.
OTHERWISE = {
    "FuxiCTR's DCN-v2": {"dim": 10, "dropout": 0.4, "decay": 0.05},
    "logistic regression": {"seeds": 1},
    "Vowpal Wabbit": {"seeds": 1},
}
COURSE = ("seconds of processor time", "AUC in validation, %")
#: The ids of a feature begin here; the last number is how many there are.
FIRST = np.array([0, 957, 5039, 5046, 5053, 5055, 5058, 5060, 5069, 5149, 5382])
NAMES = ("user", "app", "daytime", "weekday", "weekend", "place", "cost", "weather", "country", "city")
SIDES = ("train", "valid", "test")


def arguments(argv=None, row=ROWS[0]):
    parser = _common.parser(__doc__, export=False)
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="train, valid, test.libsvm; default: rows that are drawn")
    add("--seeds", type=int, default=3, help="how many, from --seed on")
    add("--epochs", type=int, default=100, help="at most")
    add("--batch", type=int, default=4096)
    add("--dim", type=int, default=32, help="width of the embedding")
    add("--layers", type=int, default=4, help="that cross features")
    add("--width", type=int, default=400, help="of each of three deep layers")
    add("--dropout", type=float, default=0.5, help="share of the values of a deep layer left out")
    add("--learning-rate", type=float, default=1e-3)
    add("--decay", type=float, default=0.1, help="of an embedding row: the share added to its gradient")
    parser.set_defaults(**OTHERWISE.get(row, {}))
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds, args.epochs, args.width, args.batch = 1, 2, 32, 512
    return args


def read(args):
    """Return pairs of ids `[rows, 10]` and labels: to train on, for validation, for the test."""
    if args.data:
        return [read_libsvm(f"{args.data}/{side}.libsvm") for side in SIDES]
    rng, found = np.random.default_rng(args.seed), []
    liked = rng.normal(size=FIRST[-1])
    for count in (6000, 1500, 1500):
        ids = rng.integers(FIRST[:-1], FIRST[1:], (count, len(NAMES)))
        odds = liked[ids].sum(1) - 1
        found.append((ids.astype("int32"), (rng.random(count) < 1 / (1 + np.exp(-odds))).astype("float32")))
    return found


def read_libsvm(path):
    with open(path) as file:
        rows = [line.split() for line in file]
    ids = np.array([[int(entry.partition(":")[0]) for entry in row[1:]] for row in rows], np.int32)
    return ids, np.array([float(row[0]) > 0 for row in rows], np.float32)


def run(row, argv):
    args = arguments(argv, row)
    models = {"DCN-v2": ours, "FuxiCTR's DCN-v2": fuxictr, "logistic regression": regression}
    (train, valid, (ids, labels)), seeds = read(args), []
    for seed in range(args.seed, args.seed + args.seeds):
        keras.utils.set_random_seed(seed)
        began, course = time.process_time(), []
        with tempfile.TemporaryDirectory() as folder:
            predict = models.get(row, vowpal_wabbit)(args, train, valid, course, folder)
            seconds, found = time.process_time() - began, np.clip(predict(ids), 1e-7, 1 - 1e-7)
        seeds.append({"AUC, %": 100 * roc_auc_score(labels, found), "log loss": log_loss(labels, found)})
        print(f"seed {seed}: {seeds[-1]}, {seconds:.0f} s", flush=True)
    scores = {}
    for name in seeds[0]:
        values = [each[name] for each in seeds]
        scores |= {name: np.mean(values), f"{name}, range": np.ptp(values)}
        if args.data and row in PUBLISHED:
            scores[f"{name}, published"] = PUBLISHED[row][name]
    scores = {name: float(value) for name, value in scores.items()}
    return {**scores, "CPU s": seconds, "GB": _common.peak_memory(), "course": course}


def ours(args, train, valid, course, folder):
    """Train DCN-v2 with our embedding and optimizer. Return a function of ids: their probabilities."""
    ids = keras.Input((len(NAMES),), dtype="int32")
    embedding = kl.layers.ShardedEmbedding(
        int(FIRST[-1]),
        args.dim,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=1e-4),
        embeddings_regularizer=keras.regularizers.L2(args.decay / 2),
    )
    first = crossed = deep = keras.layers.Flatten()(embedding(ids))
    for _ in range(args.layers):  # Wang et al., 2021, "DCN V2", equation 1
        crossed = first * keras.layers.Dense(first.shape[-1])(crossed) + crossed
    for _ in range(3):
        deep = keras.layers.BatchNormalization(momentum=0.9)(keras.layers.Dense(args.width)(deep))
        deep = keras.layers.Dropout(args.dropout)(keras.layers.Activation("relu")(deep))
    both = keras.layers.Concatenate()([crossed, deep])
    model = kl.Model(ids, keras.layers.Dense(1, activation="sigmoid")(both))
    model.compile(kl.optimizers.LazyAdam(args.learning_rate), "binary_crossentropy")
    best = BestInValidation(valid, args.batch, course)
    model.fit(*train, batch_size=args.batch, epochs=args.epochs, callbacks=[best], verbose=0)
    return lambda ids: model.predict(ids, batch_size=args.batch, verbose=0)[:, 0]


class BestInValidation(keras.callbacks.Callback):
    """Measure after each epoch, divide the rate where it was not better, and end with the best weights."""

    def __init__(self, valid, batch, course):
        super().__init__()
        self.valid, self.batch, self.course = valid, batch, course

    def on_train_begin(self, logs=None):
        self.began, self.best, self.waited = time.process_time(), -1.0, 0

    def on_epoch_end(self, epoch, logs=None):
        ids, labels = self.valid
        found = roc_auc_score(labels, self.model.predict(ids, batch_size=self.batch, verbose=0)[:, 0])
        self.course.append((time.process_time() - self.began, 100 * found))
        print(f"epoch {epoch + 1}: loss {logs['loss']:.4f}, AUC {100 * found:.2f} in validation", flush=True)
        if found > self.best:
            self.best, self.waited, self.weights = found, 0, self.model.get_weights()
            return
        self.waited += 1
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate * 0.1
        self.model.stop_training = self.waited == 2

    def on_train_end(self, logs=None):
        self.model.set_weights(self.weights)


def fuxictr(args, train, valid, course, folder):
    """Train the same model of FuxiCTR's layers, by FuxiCTR's own loop."""
    import torch
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.layers import CrossNetV2, FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel

    features = FeatureMap("frappe", folder)
    features.labels, features.num_fields = ["label"], len(NAMES)
    for name, first, end in zip(NAMES, FIRST, FIRST[1:]):
        size = {"vocab_size": int(end - first), "padding_idx": None}
        features.features[name] = {"type": "categorical", "source": "", **size}

    class Model(BaseModel):
        def __init__(self):
            said = {"verbose": 0, "model_root": folder, "metrics": ["AUC"]}
            super().__init__(features, embedding_regularizer=args.decay, **said)
            self.embedding = FeatureEmbedding(features, args.dim)
            width = args.dim * len(NAMES)
            self.crossed = CrossNetV2(width, args.layers)
            deep = {"hidden_units": [args.width] * 3, "dropout_rates": args.dropout, "batch_norm": True}
            self.deep = MLP_Block(width, **deep)
            self.last = torch.nn.Linear(width + args.width, 1)
            self.compile("adam", "binary_crossentropy", args.learning_rate)
            self.reset_parameters()

        def forward(self, inputs):
            x = self.embedding(self.get_inputs(inputs), flatten_emb=True)
            both = torch.cat([self.crossed(x), self.deep(x)], -1)
            return {"y_pred": self.output_activation(self.last(both))}

        def evaluate(self, *given, **options):
            found = super().evaluate(*given, **options)
            course.append((time.process_time() - began, 100 * found["AUC"]))
            return found

    class Batches:
        def __init__(self, ids, labels=None, shuffle=False):
            self.ids, self.shuffle = torch.tensor(ids - FIRST[:-1]), shuffle
            self.labels = torch.zeros(len(ids)) if labels is None else torch.tensor(labels)

        def __len__(self):
            return -(-len(self.ids) // args.batch)

        def __iter__(self):
            order = torch.randperm(len(self.ids)) if self.shuffle else torch.arange(len(self.ids))
            for rows in order.split(args.batch):
                yield {**dict(zip(NAMES, self.ids[rows].T)), "label": self.labels[rows]}

    os.mkdir(f"{folder}/{features.dataset_id}")
    began, model = time.process_time(), Model()
    model.fit(Batches(*train, shuffle=True), epochs=args.epochs, validation_data=Batches(*valid))
    return lambda ids: model.predict(Batches(ids))


def best_in_validation(models, predict, valid):
    """Return the function of ids that is `predict(model, ids)` for the best of `{setting: model}`."""
    found = {name: roc_auc_score(valid[1], predict(model, valid[0])) for name, model in models.items()}
    print(f"AUC in validation: {found}", flush=True)
    return lambda ids: predict(models[max(found, key=found.get)], ids)


def regression(args, train, valid, course, folder):
    """Train scikit-learn's logistic regression, with the penalty that is best in validation."""

    def one_hot(ids):
        splits = np.arange(0, ids.size + 1, ids.shape[1])
        return scipy.sparse.csr_matrix((np.ones(ids.size), ids.ravel(), splits), (len(ids), FIRST[-1]))

    ids, labels = train
    models = {c: LogisticRegression(C=c, max_iter=300).fit(one_hot(ids), labels) for c in (0.1, 1, 10)}
    return best_in_validation(models, lambda model, ids: model.predict_proba(one_hot(ids))[:, 1], valid)


def vowpal_wabbit(args, train, valid, course, folder):
    """Train Vowpal Wabbit on all pairs of features, with the passes that are best in validation."""
    import vowpalwabbit

    def learn(options, ids, labels):
        with open(f"{folder}/rows", "w") as file:
            for row, label in zip(ids.tolist(), labels):
                parts = " ".join(f"|{chr(97 + i)} {value}" for i, value in enumerate(row))
                file.write(f"{2 * label - 1:.0f} {parts}\n")
        learner = vowpalwabbit.Workspace(f"-d {folder}/rows --quiet {options}")
        learner.run_parser()
        learner.finish()

    def predict(model, ids):
        learn(f"-t -i {model} -p {folder}/answers", ids, np.zeros(len(ids)))
        return np.loadtxt(f"{folder}/answers")

    models = {passes: f"{folder}/{passes}.model" for passes in (1, 3, 10, 30)}
    options = "-q :: -b 24 --loss_function logistic --link logistic --holdout_off"
    for passes, model in models.items():
        learn(f"{options} -k --cache_file {folder}/cache --passes {passes} -f {model}", *train)
    return best_in_validation(models, predict, valid)
