"""Times that others have published, as peers of ours on the same sizes. They are not measured here."""

SOURCE = (
    "FBGEMM's table-batched embedding, called by TorchRec on an H100 80GB HBM3: 10 tables x 1,677,721 rows "
    "x 128 float32, 1,048,570 ids of a power law (exponent 1.05; 350,280 are distinct), no pooling. From "
    "NVIDIA/recsys-examples at 43465aeabf61, corelib/dynamicemb/benchmark/benchmark_results.json: "
    "`trc_forward_ms` and `trc_backward_ms` of T10_totalB1048570_D128_sgd_gpu and _adam_gpu."
)
LIBRARY = "FBGEMM, published"
CARD = "H100"
CASE = "10 x 1.68M x 128 float32, 1.05M ids, no bags"


def _row(bench, part, ms):
    return {"bench": bench, "case": CASE, "part": part, "library": LIBRARY, "ms": ms}


ROWS = (
    _row("embedding", "lookup", 0.34497),
    _row("row_update", "fused backward + SGD", 0.61372),
    _row("row_update", "fused backward + LazyAdam", 1.00475),
)
