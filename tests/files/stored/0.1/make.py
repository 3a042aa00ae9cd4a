"""Make the files of this folder: `python tests/files/stored/0.1/make.py`, with the version that it names.

`tests/files/test_stored.py` loads them with each later version.
"""

import pathlib
import shutil

import keras
import numpy as np

import keras_largeout as kl

HERE = pathlib.Path(__file__).parent
DATA = np.int32([[0, 1], [1, 4]]), np.float32([[1, 2], [3, 4]])


def model(storage="device"):
    ids = keras.Input((2,), dtype="int32")
    first = keras.initializers.RandomUniform(seed=7)
    words = kl.layers.ShardedEmbedding(
        6, 2, embeddings_initializer=first, combiner="sum", storage=storage, name="words"
    )
    made = kl.Model(ids, words(ids))
    made.compile(kl.optimizers.Adagrad(0.5), "mse")
    return made


def with_vocabulary():
    items = keras.Input((2,), dtype="int64")
    rows = kl.layers.DynamicVocabulary(4, name="items")
    made = kl.Model(items, kl.layers.ShardedEmbedding(rows.vocabulary_size(), 2, name="rows")(rows(items)))
    made.compile("sgd", "mse")
    made.fit(np.int64([[70, 80], [80, 90]]), np.zeros((2, 2, 2)), verbose=0)
    return made


def with_head():
    x = keras.Input((2,))
    head = kl.layers.HierarchicalSoftmax(5, counts=[5, 4, 3, 2, 1], name="head")
    made = kl.Model(x, head(x))
    made.compile(kl.optimizers.Adagrad(0.5), head.loss)
    made.fit(np.float32([[1, 2], [3, 4]]), np.int32([0, 3]), verbose=0)
    return made, head


def after_a_step(path):
    trained = keras.models.load_model(path)
    trained.train_on_batch(*DATA)
    return trained.layers[1].table.numpy()[:2]


def main():
    for path in HERE.iterdir():
        if path.name != "make.py":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    trained = model()
    backup = kl.callbacks.BackupAndRestore(HERE / "backup", delete_checkpoint=False)
    trained.fit(*DATA, verbose=0, callbacks=[backup])
    trained.save(HERE / "model.keras")
    trained.save_weights(HERE / "model.weights.h5")
    trained.save_weights(HERE / "pieces.weights.json", max_shard_size=2e-7)
    print("table", trained.layers[1].table.numpy().tolist())
    print("after a step", after_a_step(HERE / "model.keras").tolist())

    in_files = model(f"file:{HERE}/table")
    in_files.fit(*DATA, verbose=0)
    print("in files", in_files.layers[1].table.numpy().tolist())
    kl.close_files(in_files)

    vocabulary = with_vocabulary()
    vocabulary.save(HERE / "vocabulary.keras")
    print("vocabulary", vocabulary.get_layer("items").get_vocabulary())
    print("rows", vocabulary.get_layer("rows").table.numpy().tolist())

    made, head = with_head()
    made.save(HERE / "head.keras")
    print("log probs", np.asarray(head.log_probs(np.float32([[1, -1]]))).tolist())

    specs = [kl.distribute.TableSpec("words", 1000, 8, slots=1), kl.distribute.TableSpec("tiny", 10, 4)]
    plan = kl.distribute.plan(specs, 2, batch_size=16, small=100)
    plan.save(HERE / "plan.json")
    words = plan.tables[0].placement
    print("positions", words.position(np.arange(4)).tolist())
    print("plan", [(table.spec.name, table.placement.kind, table.placement.sizes) for table in plan.tables])


main()
