"""`prefetch_rows`: a dataset that tells the storage of tables which rows its next batches use."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import tensorflow as tf

from keras_largeout._checks import positive_int
from keras_largeout.tables.shard import ShardVariable
from keras_largeout.tables.storage.batch_rows import BatchRows


def prefetch_rows(dataset: tf.data.Dataset, model: keras.Model, batches: int = 100) -> tf.data.Dataset:
    """Brings the rows that coming batches use to where they are used, while others train.

    For tables with `cache_rows`: before a chunk of `batches` batches is trained, all rows that it uses are
    brought to the devices, with their optimizer slots. Rows that two chunks share stay there. Those that must
    make room are written back, the longest unused first. The next chunk is read, and its rows are brought,
    while one trains: two chunks of batches are in host memory at a time. The cache of a device should have
    room for the rows of two chunks. Where it has not, the rest is brought between them.

    This says how fast a step is, and nothing of what it computes: rows that were not announced are used where
    they are.

    Args:
        dataset: `tf.data.Dataset` of the batches that `fit` takes: inputs, or a tuple of inputs, targets and
            sample weights; on several devices those for all of them.
        model: a built `keras.Model`. Its call says which rows a batch uses, for inference: rows of ids that a
            vocabulary takes in during the step are not announced.
        batches: int > 0, of a chunk. Defaults to `100`.

    Returns:
        A `tf.data.Dataset` of the same elements, or `dataset` itself where no table gains by it.

    Raises:
        ValueError: another dataset, a model that is not built, or no such number of batches.
        tf.errors.InvalidArgumentError: in an iteration: one chunk needs more rows than `cache_rows`.

    Example:

    ```python
    embedding = kl.layers.ShardedEmbedding(400_000_000, 64, storage="host", cache_rows=20_000_000)
    model = build_model(embedding)
    model.fit(kl.distribute.prefetch_rows(dataset, model), epochs=3)
    ```

    References:
        - [Zhao et al., 2020](https://arxiv.org/abs/2003.05622) (GPUs get the parameters of a pass of batches
          before it).
    """
    batches = positive_int("batches", batches)
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            f"`dataset` must be a tf.data.Dataset of batches. Received: dataset={dataset!r} of type "
            f"{type(dataset).__name__}"
        )
    if not getattr(model, "built", False):
        raise ValueError(
            "`model` must be a built model: call it on a batch first, or make it of inputs and outputs. "
            f"Received: model={model!r}"
        )
    parts = [weight for weight in model.weights if isinstance(weight, ShardVariable) and weight.can_prefetch]
    if not parts:
        return dataset
    chunks = _Chunks(dataset, model, parts, batches)
    kept = weakref.ref(chunks)  # TensorFlow keeps the function for good: the dataset keeps the model
    found = tf.data.Dataset.from_generator(lambda: kept().elements(), output_signature=dataset.element_spec)
    cardinality = dataset.cardinality()
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        found = found.apply(tf.data.experimental.assert_cardinality(cardinality))
    # The thread that waits for a chunk does not compute: there may be but one.
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    found = found.with_options(options)
    found.chunks = chunks
    return found


class _Chunks:
    """The elements of a dataset, each chunk of which is announced before it is handed out.

    Args:
        dataset, model, batches: as for `prefetch_rows`.
        parts: the `ShardVariable`s that can be asked.
    """

    def __init__(self, dataset, model, parts, batches):
        self._dataset, self._model, self._parts, self._batches = dataset, model, parts, batches
        with ThreadPoolExecutor(1) as thread:  # where no strategy and no device of the caller's is in force
            thread.submit(self._trace).result()

    def _trace(self):
        self._placements = [part.array.placement for part in self._parts]
        self._wanted = BatchRows(self._model, self._dataset.element_spec)

    def elements(self):
        """Yield a generator of one pass. A chunk is read and announced in its own thread."""
        if any(part.array.placement is not there for part, there in zip(self._parts, self._placements)):
            self._trace()  # rows were moved
        stop, source = threading.Event(), iter(self._dataset)
        thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch_rows")
        try:
            coming = thread.submit(self._read, source, stop)
            while coming is not None:
                chunk, beginnings, end = coming.result()
                for begin in beginnings:
                    begin()
                coming = thread.submit(self._read, source, stop) if end is None else None
                yield from chunk
            if isinstance(end, Exception):
                raise end
        finally:  # the pass may have been given up
            stop.set()
            thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, source, stop):
        """Reads the next chunk, and asks for its rows.

        Returns:
            The batches, functions to be called before they are used, and the end of the dataset: True, or the
            error with which it ended; None if it has not.
        """
        chunk, rows, end = [], {}, None
        while len(chunk) < self._batches and end is None and not stop.is_set():
            try:
                batch = next(source, None)
            except Exception as error:  # it comes after the batches before it
                end = error
                break
            if batch is None:
                end = True
                break
            chunk.append(batch)
            for part, found in self._of_batch(batch):
                rows.setdefault(id(part), (part, []))[1].append(found)
        begins = [part.prefetch(np.unique(np.concatenate(found))) for part, found in rows.values()]
        return chunk, [begin for begin in begins if begin is not None], end

    def _of_batch(self, batch):
        try:
            return [(part, np.unique(rows)) for part, rows in self._wanted(batch)]
        except tf.errors.InvalidArgumentError:  # ids that a layer refuses: the step says so
            return []
