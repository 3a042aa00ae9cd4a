"""Word vectors from co-occurrence in a corpus."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from keras_largeout._checks import positive_int
from keras_largeout.trees import _check


def cooccurrence_vectors(
    ids: ArrayLike | Sequence[ArrayLike],
    num_classes: int,
    dim: int = 64,
    window: int = 4,
    contexts: int = 4096,
    smoothing: float = 0.75,
    max_pairs: int = 200_000_000,
    seed: int = 0,
) -> np.ndarray:
    """Return word vectors for `head_tail`: truncated SVD of positive pointwise mutual information.

    It counts how often each class occurs within `window` words of each of the `contexts` most frequent
    classes. From that it takes `max(0, log(p(word, context) / (p(word) p(context))))`, and returns
    `U * sqrt(S)` of the leading singular vectors.

    Args:
        ids: class ids of a corpus: integers `[words]`, integers `[documents, words]`, or a sequence of 1-D
            arrays, one per document. Words of different documents are never in one window. Negative ids are
            padding or unknown words: they take up room in a window and count for nothing.
        num_classes: int, the number of classes; all ids are smaller.
        dim: int, width of the vectors. Defaults to `64`.
        window: int, how many words away a context may be, on either side. Defaults to `4`.
        contexts: int, how many classes serve as contexts. Defaults to `4096`.
        smoothing: float, the power of the context distribution; below 1, rare contexts weigh less. Defaults
            to `0.75`.
        max_pairs: int; with more pairs of words than this, a random subset of the words is used. Defaults to
            `200000000`.
        seed: int, seed of that subset and of the SVD. Defaults to `0`.

    Returns:
        float32 `[num_classes, dim]`; classes that never occur have rows of zeros.

    Raises:
        ImportError: SciPy or scikit-learn is not installed.
        ValueError: ids or numbers out of range.

    Example:

    ```python
    vectors = kl.trees.cooccurrence_vectors(words, num_classes)
    tree = kl.trees.head_tail(counts, vectors)
    ```

    References:
        - O. Levy, Y. Goldberg, I. Dagan, "Improving distributional similarity with lessons learned from word
          embeddings", TACL 2015 (sections 3.1 and 3.2).
    """
    try:
        from scipy import sparse
        from sklearn.utils.extmath import randomized_svd
    except ImportError as error:
        raise ImportError(
            "cooccurrence_vectors needs SciPy and scikit-learn: pip install keras-largeout[vectors]"
        ) from error
    num_classes, dim = positive_int("num_classes", num_classes), positive_int("dim", dim)
    window, contexts = positive_int("window", window), positive_int("contexts", contexts)
    text, document = _text(ids, num_classes)
    frequency = np.bincount(text[text >= 0], minlength=num_classes)
    chosen = _check.by_frequency(frequency)[: min(contexts, int(np.count_nonzero(frequency)))]
    context_of = np.full(num_classes + 1, -1, np.int32)  # The last entry is that of padding, whose id is -1.
    context_of[chosen] = np.arange(len(chosen))

    rng = np.random.default_rng(seed)
    keep = max_pairs / max(2 * window * len(text), 1)
    used = None if keep >= 1 else rng.random(len(text)) < keep
    pairs = sparse.csr_matrix((num_classes, len(chosen)), dtype=np.float32)
    for distance in range(1, window + 1):
        for word, context in _shifted(text, distance):
            near = (word >= 0) & (context_of[context] >= 0)
            if document is not None:
                near &= document[distance:] == document[:-distance]
            if used is not None:
                near &= used[distance:]
            words, others = word[near], context_of[context[near]]
            ones = np.ones(len(words), np.float32)
            pairs += sparse.coo_matrix((ones, (words, others)), pairs.shape).tocsr()
    _to_positive_information(pairs, smoothing)
    vectors = np.zeros((num_classes, dim), np.float32)
    rank = min(dim, *pairs.shape)
    if pairs.nnz:
        left, values, _ = randomized_svd(pairs, rank, n_iter=3, random_state=seed)
        vectors[:, :rank] = left * np.sqrt(values)
    return vectors


def _shifted(text, distance):
    yield text[distance:], text[:-distance]
    yield text[:-distance], text[distance:]


def _to_positive_information(pairs, smoothing):
    """Turns counts into positive pointwise mutual information, in place."""
    word = np.asarray(pairs.sum(axis=1, dtype=np.float64)).ravel()
    context = np.asarray(pairs.sum(axis=0, dtype=np.float64)).ravel() ** smoothing
    context /= max(context.sum(), 1e-300)
    with np.errstate(divide="ignore"):
        log_word, log_context = np.log(word), np.log(context)
    rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
    information = np.log(pairs.data) - log_word[rows] - log_context[pairs.indices]
    pairs.data = np.maximum(information, 0).astype(np.float32)
    pairs.eliminate_zeros()


def _text(ids, num_classes):
    """Return all documents in one int32 array, and the document of each word (None for a single document)."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype != object:
        text, document = ids, None
    else:
        documents = [np.asarray(d) for d in ids]
        if any(d.ndim != 1 for d in documents):
            raise ValueError(
                "`ids` must be a 1-D array, a 2-D array or a sequence of 1-D arrays of class ids."
            )
        documents = [d for d in documents if len(d)]
        text = np.concatenate(documents) if documents else np.zeros(0, np.int32)
        lengths = [len(d) for d in documents]
        document = np.repeat(np.arange(len(lengths)), lengths)
    if text.dtype.kind not in "iu":
        raise ValueError(f"`ids` must be integers. Received: dtype {text.dtype}")
    if text.size and text.max() >= num_classes:
        raise ValueError(f"`ids` must be below num_classes={num_classes}. Received: an id of {text.max()}")
    return np.maximum(text, -1).astype(np.int32), document
