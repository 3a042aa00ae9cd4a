"""`exchange_dtype="bfloat16"` on a cluster: every head learns what it learns without, from fewer bytes."""

import re

import pytest
from distribute.cluster._model import MODEL, ended, said

HEADS = (
    MODEL
    + """
def of(head_of, tied=False, **words):
    keras.utils.set_random_seed(1)
    with STRATEGY.scope():
        tokens = keras.Input((5,), dtype="int32")
        place = {"placement": "range", **words}
        words = kl.layers.ShardedEmbedding(WORDS, 16, mask_zero=True, name="words", **place)
        head = head_of(**({"kernel": words} if tied else {}))
        model = kl.Model(tokens, head(keras.layers.Dense(16, activation="tanh")(words(tokens))))
        model.compile(kl.optimizers.LazyAdam(1e-2), loss=head.loss)
    return model

counts = np.arange(WORDS, 0, -1)
HEADS = {
    "tree": lambda: of(lambda: kl.layers.HierarchicalSoftmax(WORDS, counts=counts)),
    "columns": lambda: of(lambda: kl.layers.FullSoftmax(WORDS), placement="columns"),
    "tied": lambda: of(lambda **kw: kl.layers.FullSoftmax(WORDS, **kw), tied=True),
    "tied_whole": lambda: of(
        lambda **kw: kl.layers.FullSoftmax(WORDS, **kw), tied=True, placement="replicated"
    ),
    "sampled": lambda: of(lambda: kl.layers.SampledSoftmax(WORDS, num_sampled=50, counts=counts)),
    "fan_in": lambda: of(lambda: kl.layers.SparseOutput(WORDS, fan_in=8, loss="softmax", seed=3)),
    "fan_in_fused": lambda: of(
        lambda: kl.layers.SparseOutput(
            WORDS, fan_in=8, loss="softmax", seed=3, optimizer=kl.optimizers.LazyAdam(1e-2)
        )
    ),
}
for name, make_one in HEADS.items():
    found = []
    for dtype in (None, "bfloat16"):
        STRATEGY.exchange_dtype = dtype
        model = make_one()
        balance = kl.callbacks.LoadBalance(warn_above=None, record=False)
        model.fit(data(4), verbose=0, shuffle=False, callbacks=[balance])
        losses = model.fit(data(6), epochs=2, verbose=0, shuffle=False).history["loss"]
        losses += [model.evaluate(data(2, seed=5), verbose=0)]
        found.append([losses, {key: load.bytes_per_step for key, load in balance.loads.items()}])
    say(name, found)
try:
    kl.distribute.strategy(exchange_dtype=None)
except ValueError as error:
    say("refused", str(error))
"""
)
NAMES = ("tree", "columns", "tied", "tied_whole", "sampled", "fan_in", "fan_in_fused")


def test_heads_learn_the_same_from_fewer_bytes(new_cluster):
    script = ended(new_cluster(1, 2).run(HEADS))
    for name in NAMES:
        (losses, wide), (rounded, narrow) = said(script, name)
        assert rounded == pytest.approx(losses, rel=5e-3), name
        if name.startswith("tied"):
            continue
        assert rounded != losses, name
        for table in wide:
            assert narrow[table] < 0.75 * wide[table], (name, table)
    assert re.search("`exchange_dtype` must be what this process connected with, 'bfloat16'", script.text)
