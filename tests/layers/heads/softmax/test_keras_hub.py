"""Backbones of keras_hub with a `FullSoftmax` in the place of their logits: the numbers of its own models."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from _training import assert_same

import keras_largeout as kl

pytestmark = pytest.mark.full  # importing keras_hub takes 6 s
WORDS, DIM, BATCH, LENGTH = 31, 8, 4, 6
SIZES = {"vocabulary_size": WORDS, "num_layers": 1, "hidden_dim": DIM, "intermediate_dim": 12}
KINDS = {  # of a model: its keyword arguments
    "GPT2": {"num_heads": 2, "max_sequence_length": LENGTH, "dropout": 0.0},
    "Gemma": {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 4},
    "Llama": {"num_query_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "untied Llama": {"num_query_heads": 2, "num_key_value_heads": 1},
}
TIED = [kind for kind in KINDS if "untied" not in kind]


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub", reason="pip install keras-largeout[hub]")


def backbone_of(hub, kind):
    keras.utils.set_random_seed(5)
    return getattr(hub.models, f"{kind.split()[-1]}Backbone")(**SIZES, **KINDS[kind])


def causal_lm(hub, kind, backbone):
    return getattr(hub.models, f"{kind.split()[-1]}CausalLM")(backbone=backbone, preprocessor=None)


def with_head(backbone, nested=False, **options):
    """Return the model that is trained in the place of a `CausalLM`."""
    words = backbone.token_embedding
    tied = words if words.tie_weights else None
    head = kl.layers.FullSoftmax(WORDS, kernel=tied, use_bias=False, name="head", **options)
    inputs = {name: keras.Input((LENGTH,), dtype="int32", name=name) for name in backbone.input}
    model = (
        kl.Model(inputs, head(backbone(inputs)))
        if nested
        else kl.Model(backbone.input, head(backbone.output))
    )
    if tied is None:  # the head has the matrix of the logits, which trains in the place of the layer's
        head.kernel.assign(words.reverse_embeddings.numpy().T)
        words.reverse_embeddings.trainable = False
    model.compile(keras.optimizers.Adam(0.01), loss=head.loss)
    return model, head


def data(rows=3 * BATCH):
    """Return inputs, targets and the weights of targets, as a `CausalLMPreprocessor` has them."""
    tokens = np.random.default_rng(0).integers(WORDS, size=(rows, LENGTH + 1), dtype="int32")
    there = (np.arange(LENGTH + 1) < np.arange(rows)[:, None] % 4 + 4).astype("int32")
    return {"token_ids": tokens[:, :-1], "padding_mask": there[:, :-1]}, tokens[:, 1:], there[:, 1:]


def losses_of(model):
    x, y, weight = data()
    losses = []
    noted = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: losses.append(logs["loss"]))
    model.fit(x, y, BATCH, sample_weight=weight, shuffle=False, verbose=0, callbacks=[noted])
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_dense_logits(hub, kind):
    dense, backbone = backbone_of(hub, kind), backbone_of(hub, kind)
    backbone.set_weights(dense.get_weights())
    peer = causal_lm(hub, kind, dense)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    peer.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=None)
    model, head = with_head(backbone)
    np.testing.assert_allclose(losses_of(model), losses_of(peer), rtol=1e-5)
    of_words = {"words": dense.token_embedding.embeddings.numpy()}
    assert_same({"words": backbone.token_embedding.embeddings.numpy()}, of_words, rtol=1e-3, atol=1e-5)
    if kind not in TIED:
        kernel = dense.token_embedding.reverse_embeddings.numpy().T
        assert_same({"kernel": head.kernel.numpy()}, {"kernel": kernel}, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
def test_copies_share_their_own_table(hub, nested, tmp_path):
    model, _ = with_head(backbone_of(hub, "GPT2"), nested)
    losses_of(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    x, y, weight = data()
    want = model.evaluate(x, y, sample_weight=weight, verbose=0)
    for copy in (loaded, clone):
        head = copy.get_layer("head")
        copy.compile(keras.optimizers.Adam(0.01), loss=head.loss)
        assert copy.evaluate(x, y, sample_weight=weight, verbose=0) == want
        (shared,) = head.kernel.shards
        assert [w.path for w in copy.trainable_weights if w is shared] == ["token_embedding/embeddings"]
        assert all(w is not shared for w in model.weights)
    predictor = model.get_layer("head").predictor(model, k=3)
    kl.export_saved_model(predictor, tmp_path / "exported")
    exported = tf.saved_model.load(tmp_path / "exported")
    served = exported.serve({name: tf.constant(value) for name, value in x.items()})
    np.testing.assert_array_equal(served["ids"], predictor.predict(x, verbose=0)["ids"])


@pytest.mark.parametrize("kind", ["GPT2", "untied Llama"])
def test_generate(hub, kind):
    """Greedy words are those that the head finds best; another head takes the place of the logits."""
    backbone = backbone_of(hub, kind)
    model, head = with_head(backbone)
    losses_of(model)

    class WithHead(type(causal_lm(hub, kind, backbone))):
        def call_with_cache(self, *args, **kwargs):
            _, hidden, cache = super().call_with_cache(*args, **kwargs)
            return head.log_probs(hidden), hidden, cache

    makers = [WithHead] if kind not in TIED else [WithHead, type(causal_lm(hub, kind, backbone))]
    there = np.repeat(np.arange(LENGTH)[None] < 3, 2, axis=0).astype("int32")
    tokens = data()[0]["token_ids"][:2]
    want = tokens * there
    for step in range(3, LENGTH):
        hidden = model.predict({"token_ids": want, "padding_mask": np.ones_like(want)}, verbose=0)
        want[:, step] = head.top_k(hidden[:, step - 1], 1)[1][:, 0]
    for make in makers:
        generator = make(backbone=backbone, preprocessor=None)
        generator.compile(sampler="greedy")
        found = generator.generate({"token_ids": tokens * there, "padding_mask": there}, stop_token_ids=None)
        np.testing.assert_array_equal(found["token_ids"], want)
        generator.compile(sampler=hub.samplers.TopPSampler(0.9, seed=1))
        found = generator.generate({"token_ids": tokens * there, "padding_mask": there}, stop_token_ids=None)
        assert found["token_ids"].shape == (2, LENGTH) and found["token_ids"].max() < WORDS


def test_a_cap_of_logits_is_refused(hub):
    capped = hub.models.GemmaBackbone(**SIZES, **KINDS["Gemma"], final_logit_soft_cap=30.0)
    with pytest.raises(
        ValueError, match=r"`logit_soft_cap=None`.* 'token_embedding' with logit_soft_cap=30\.0"
    ):
        with_head(capped)
