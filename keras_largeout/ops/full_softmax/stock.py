"""The best classes of a softmax over all rows of a table, in stock TensorFlow ops."""

import tensorflow as tf

from keras_largeout.ops.rows import gather, unit_rows
from keras_largeout.ops.top_k_in_chunks import top_k_in_chunks

_VALUES = 2**23  # Logits that exist at a time: of all tokens, for
_MOST, _LEAST = 16_384, 512  # so many classes, whose rows are copied.


def stock_full_top_k(hidden, table, bias, classes, k, excluded=None, normalize=False, present=None):
    """Return the k largest logits of every token, and the logsumexp of all.

    Args:
        hidden: float `[n, dim]`.
        table, bias: variables or tensors `[classes, dim]`, and `[classes]` or None.
        classes: int.
        k: int, or an int32 scalar tensor.
        excluded: as in `top_k_in_chunks`.
        normalize: bool, whether rows are divided by their lengths, a chunk at a time.
        present: as in `top_k_in_chunks`.

    Returns:
        `(scores, ids, logsumexp)`: float32 `[n, k]`, descending, int32 `[n, k]`, float32 `[n]`.
    """
    hidden = tf.cast(hidden, tf.float32)

    def logits_of(rows):
        rows_of = tf.cast(gather(table, rows), tf.float32)
        logits = tf.matmul(hidden, unit_rows(rows_of) if normalize else rows_of, transpose_b=True)
        return logits if bias is None else logits + tf.cast(tf.gather(bias, rows), tf.float32)

    tokens = tf.shape(hidden)[0]
    # Each chunk is joined with the k best so far: more than k classes are worth it.
    step = tf.clip_by_value(tf.maximum(_VALUES // tf.maximum(tokens, 1), k), _LEAST, _MOST)
    return top_k_in_chunks(logits_of, tokens, classes, step, k, excluded, present)
