"""What the examples of docstrings take for granted: names such as `model` and `data`, made small.

`SETUPS` has the code that runs before the example of a public name.
"""

HEAD = """
inputs = keras.Input((8,), dtype="int32")
words = kl.layers.ShardedEmbedding(100, 8, name="words")
head = kl.layers.FullSoftmax(100)
model = kl.Model(inputs, head(words(inputs)))
model.compile(kl.optimizers.LazyAdam(), loss=head.loss)
tokens = history = np.arange(32, dtype=np.int32).reshape(4, 8)
data = dataset = train = valid = validation = tf.data.Dataset.from_tensor_slices((tokens, tokens)).batch(2)
optimizer, vocabulary, num_classes = kl.optimizers.LazyAdam(), [f"word {i}" for i in range(100)], 100
words = np.arange(1000) % 100
counts = np.bincount(words, minlength=num_classes) + 1
"""
#: Symbolic inputs, for examples that make a model themselves.
INPUTS = """
tokens = history = keras.Input((None,), dtype="int32")
inputs = x = keras.Input((32,))
vocab, counts = 1000, np.arange(1, 1001)
data = tf.data.Dataset.from_tensor_slices((np.ones([4, 32], "float32"), [[1], [2], [3], [4]])).batch(2)
"""
BAGS = """
ids = keras.Input((None,), dtype="int32", ragged=True, name="ids")
values = keras.Input((None,), dtype="float32", ragged=True, name="values")
head = kl.layers.SparseOutput(4, fan_in=2)
hidden = kl.layers.SparseDense(8, input_dim=64)(ids, values=values)
model = kl.Model({"ids": ids, "values": values}, head(hidden))
model.compile("adam", loss=head.loss)
"""
DENSE = """
model = kl.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(3, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
x, y = np.ones([8, 4], "float32"), np.zeros([8], "int32")
"""
SHARDED = """
def make_model(placement="permutation"):
    words = kl.layers.ShardedEmbedding(1000, 8, placement=placement, name="words")
    model = kl.Sequential([keras.Input((4,), dtype="int32"), words, keras.layers.Dense(1)])
    model.compile(kl.optimizers.LazyAdam(), "mse")
    return model
with kl.distribute.strategy(2).scope():
    model = make_model()
ids = np.arange(64, dtype=np.int32).reshape(16, 4)
data = dataset = tf.data.Dataset.from_tensor_slices((ids, np.zeros([16, 4, 1], "float32"))).batch(8)
"""
FILES = """
def build_model(storage="file:rows"):
    words = kl.layers.ShardedEmbedding(100, 8, storage=storage, name="words")
    model = kl.Sequential([keras.Input((4,), dtype="int32"), words, keras.layers.Dense(1)])
    model.compile(kl.optimizers.LazyAdam(), "mse")
    return model
model = build_model()
"""
TOWERS = """
rng = np.random.default_rng(0)
kinds = (np.arange(500) % 20).astype("int32")
pairs = {"user": rng.integers(0, 1000, 32), "item": rng.integers(0, 100, 32)}
pairs["kind"] = kinds[pairs["item"]]
positives = pairs["item"][:, None]
user, item, kind = (keras.Input((), dtype="int32", name=name) for name in ("user", "item", "kind"))
features = {"item": item, "kind": kind}
rows = [kl.layers.ShardedEmbedding(500, 8)(item), kl.layers.ShardedEmbedding(20, 8)(kind)]
item_tower = kl.Model(features, keras.layers.add(rows))
head = kl.layers.Retrieval()
users = kl.layers.ShardedEmbedding(1000, 8)(user)
model = kl.Model({"user": user, **features}, head(users, item_tower(features)))
"""
SPECS = """
specs = [kl.distribute.TableSpec("users", rows=10_000, dim=64), kl.distribute.TableSpec("items", 1000, 8)]
counts = np.arange(1, 1001)
"""

CLICKS = """
layers = [kl.layers.ShardedEmbedding(100, 8), keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")]
model = kl.Sequential([keras.Input((4,), dtype="int32"), *layers])
x, y = np.arange(32, dtype=np.int32).reshape(8, 4), np.zeros([8, 1], "float32")
"""

SETUPS = {
    "close_files": FILES,
    "export_saved_model": HEAD,
    "resize": HEAD
    + """
model = kl.Sequential([kl.layers.ShardedEmbedding(1000, 8, name="items"), keras.layers.Dense(1)])
model.compile(kl.optimizers.LazyAdam(), "mse")
model.build((None, 8))
data = data.map(lambda x, y: (x, tf.zeros([2, 8, 1])))
""",
    "stock_ops": HEAD,
    "warm_start": HEAD
    + """
import gzip
model.fit(data, verbose=0)
model.save("yesterday.keras")
vocabulary = [f"word{i}" for i in range(100)]
with gzip.open("vectors.txt.gz", "wt") as file:
    file.write("".join(f"word{i} " + " ".join(["0.5"] * 12) + "\\n" for i in range(50, 150)))
""",
    "storage": FILES + 'model.save("model.keras")\nkl.close_files(model)',
    "callbacks.BackupAndRestore": HEAD,
    "callbacks.DecayTables": CLICKS,
    "callbacks.FollowLearningRate": "ids, y = np.arange(64).reshape(16, 4), np.zeros([16, 4, 1])",
    "callbacks.FeatureReport": HEAD.replace('name="words"', 'name="user"'),
    "callbacks.IndexItems": TOWERS + "kinds = kinds[:100]",
    "callbacks.LoadBalance": SHARDED,
    "callbacks.ModelCheckpoint": HEAD + 'import os\nos.mkdir("run")',
    "callbacks.PrometheusMetrics": HEAD,
    "callbacks.Rewire": INPUTS,
    "callbacks.SwapEMAWeights": HEAD + "x = y = tokens\nheld_out = validation",
    "callbacks.TensorBoard": HEAD,
    "datasets.ExtremeClassification": BAGS
    + """
import gzip
with gzip.open("train.txt.gz", "wt") as file:
    file.write("2 64 4\\n0,1 3:0.5 7:1\\n2 5:1\\n")
""",
    "datasets.LabeledRows": BAGS
    + """
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import MultiLabelBinarizer
texts, tags = ["a red car", "the blue car drives"], [["a", "b"], ["c", "d"]]
""",
    "datasets.SparseRows": """
import sklearn.feature_extraction
samples, clicked = [{"user=3": 1, "price": 0.5}, {"user=4": 1}], np.array([0.0, 1.0])
""",
    "datasets.TabularFiles": """
import os
os.mkdir("logs")
with open("logs/1.csv", "w") as file:
    file.write("user,ad,clicked\\nx,y,1\\nz,y,0\\n")
features = {name: keras.Input((), dtype="string", name=name) for name in ("user", "ad")}
ids = kl.layers.CategoryHashing(100)(features)
rows = [kl.layers.ShardedEmbedding(100, 4)(ids[name]) for name in ids]
model = kl.Model(features, keras.layers.Dense(1)(keras.layers.add(rows)))
model.compile(kl.optimizers.LazyAdam(), "mse")
""",
    "distribute.Device": SPECS,
    "distribute.Plan": SPECS,
    "distribute.parallelize": DENSE,
    "distribute.place_tree": SPECS,
    "distribute.plan_from": SHARDED,
    "distribute.prefetch_rows": SHARDED + "def build_model(embedding):\n    return make_model()\n",
    "distribute.rebalance": SHARDED,
    "distribute.server_files": DENSE + 'import os\nos.makedirs("shared/run")',
    "distribute.shared_folder": DENSE + "strategy = tf.distribute.get_strategy()",
    "distribute.strategy": SHARDED + "build_model, head = make_model, type('head', (), {'loss': 'mse'})",
    "layers.DistributedEmbedding.table_optimizers": """
movies = kl.layers.TableConfig("movies", 100, 8, optimizer="adagrad")
embedding = kl.layers.DistributedEmbedding(kl.layers.FeatureConfig("seen", movies))
embedding(np.array([[1]]))
""",
    "layers.FullSoftmax": INPUTS,
    "layers.Head.top_k": HEAD.replace("head(words(inputs))", "head(words(inputs)[:, -1])"),
    "layers.Head.sample": HEAD + "unknown = [[0]] * 4",
    "layers.Head.predictor": HEAD.replace('dtype="int32")', 'dtype="int32", name="items")'),
    "layers.HierarchicalSoftmax": INPUTS + "x = keras.layers.Embedding(1000, 8)(tokens)",
    "layers.Retrieval": TOWERS,
    "layers.SampledSoftmax": INPUTS + "counts = np.arange(1, 1_000_001)",
    "layers.SparseOutput": INPUTS,
}
for _name in ("ClassIndex", "index"):
    SETUPS[f"serving.{_name}"] = HEAD
SETUPS["serving.load_index"] = HEAD + "hidden = model.predict(history)[:, -1]"
SETUPS["serving.beam_search"] = HEAD.replace("Input((8,)", "Input((None,)") + "texts, end = tokens, 0"
_PREDICTOR = "serving = head.predictor(model, k=5)\n"
SETUPS["serving.export_delta"] = HEAD + _PREDICTOR
SETUPS["serving.apply_delta"] = f"""{HEAD}{_PREDICTOR}
kl.export_saved_model(serving, "export/1")
kl.serving.export_delta(serving, "export/1", "update.delta")
"""
for _name in ("MRR", "HitRateAtK", "NDCGAtK", "Perplexity", "PrecisionAtK", "RecallAtK", "TopKAccuracy"):
    SETUPS[f"metrics.{_name}"] = HEAD
for _name in ("SGD", "Adagrad", "LazyAdam", "LossScaleOptimizer"):
    SETUPS[f"optimizers.{_name}"] = HEAD
for _name in ("Ftrl", "RowWiseAdagrad"):
    SETUPS[f"optimizers.{_name}"] = DENSE
for _name in ("cooccurrence_vectors", "head_tail"):
    SETUPS[f"trees.{_name}"] = HEAD
