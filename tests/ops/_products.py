"""In what type a device multiplies."""

import ml_dtypes

from keras_largeout.ops import build_info


def in_bfloat16(hidden, device):
    """bool: whether products with these hidden vectors are of bfloat16; other factors are rounded then."""
    return hidden.dtype == ml_dtypes.bfloat16 and (device != "cpu" or "BF16" in build_info()["isa"])
