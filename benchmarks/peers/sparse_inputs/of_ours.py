"""keras_largeout: CategoryHashing and its op, SparseDense."""

from benchmarks.peers.sparse_inputs import of_keras


def hash_layer(config, data):
    from keras_largeout.layers import CategoryHashing

    options = {"num_hashes": config.get("num_hashes", 1), "hash": config["hash"]}
    return of_keras.hash_strings(CategoryHashing(config["bins"], **options), data, config["bins"])


def hash_op(config, data):
    from keras_largeout.ops.hashing.wrapper import xxhash64

    return of_keras.hash_strings(lambda values: xxhash64(values, 0), data, 2**64)


def one_pass(config, data):
    def slots(model):
        kernel = model.layers[-1].kernel
        return [slot.value for slot in model.optimizer.slots_of(kernel)]

    return of_keras.one_pass(config, data, *_ours(), slots)


def few_rows(config, data):
    return of_keras.few_rows(config, data, *_ours())


def _ours():
    from keras_largeout import layers, optimizers

    layer = layers.SparseDense(1, activation="sigmoid", kernel_initializer="zeros")
    return layer, optimizers.Ftrl(**of_keras.RATES)
