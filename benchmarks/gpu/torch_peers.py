"""Measure PyTorch, and FBGEMM where it is installed, on the sizes of the CUDA benches.

Prints a line of JSON per measurement, as the benches do. A peer that fails costs its own lines alone.
"""

import argparse
import importlib.util
import json
import sys
import time

try:
    import torch
    from torch.utils.checkpoint import checkpoint
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)

DIM, BAG, TABLES = 128, 8, 10
ROWS, IDS = 1_677_721 * TABLES, 1_048_560  # as NVIDIA's benchmark of FBGEMM
ADAGRAD_EPSILON = 1e-7


def measure(call, device, repeats):
    """Return median, first and last decile of `call(i)`, in milliseconds."""
    for i in range(min(3, repeats)):
        call(i)
    times = []
    for i in range(repeats):
        if device == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(400_000)  # as in cuda_bench.cuh: the host is ahead, launches are not timed
            start.record()
            call(i)
            stop.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(stop))
        else:
            began = time.perf_counter()
            call(i)
            times.append(1e3 * (time.perf_counter() - began))
    times.sort()
    return times[repeats // 2], times[repeats // 10], times[repeats - 1 - repeats // 10]


def report(bench, case, part, library, times, note=""):
    row = {"bench": bench, "case": case, "part": f"{part}, {library}"}
    print(json.dumps(row | dict(zip(("ms", "low", "high"), times)) | {"note": note}), flush=True)


def products(device, quick):
    """Measure large matrix products: what the card can do in each type."""
    size = 256 if quick else 8192
    for name, dtype in (("float32", torch.float32), ("tf32", torch.float32), ("bfloat16", torch.bfloat16)):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        times = measure(lambda _, a=a, b=b: a @ b, device, 2 if quick else 20)
        note = f"{2e-9 * size**3 / times[0]:.1f} TFLOP/s"
        report("product", f"{size} x {size} x {size}", name, "PyTorch", times, note)
    torch.backends.cuda.matmul.allow_tf32 = False  # as our kernels, unless they are told otherwise


def power_law(n, rows, power, generator, spread):
    """Return ids of a power law over [0, rows), drawn as the CUDA benches draw them."""
    top = (rows + 1.0) ** (1.0 - power)
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    ids = (((top - 1.0) * u + 1.0) ** (1.0 / (1.0 - power))).long().sub(1).clamp(0, rows - 1)
    return (ids * 2_654_435_761) % rows if spread else ids


def ids_of(kind, n, rows, generator):
    """Return ids: "power-law" over all rows, "uniform", or "tables", whose frequent rows come first."""
    if kind == "uniform":
        return torch.randint(rows, (n,), generator=generator)
    if kind == "power-law":
        return power_law(n, rows, 1.05, generator, True)
    of_each = rows // TABLES
    parts = [power_law(n // TABLES, of_each, 1.05, generator, False) + t * of_each for t in range(TABLES)]
    return torch.cat(parts)


def torch_embedding(rows, bag, device, optimizer):
    """Return a layer with sparse gradients, what makes its inputs of ids, and its step."""
    if bag > 1:
        layer = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True, device=device)
    else:
        layer = torch.nn.Embedding(rows, DIM, sparse=True, device=device)
    make = {"SGD": torch.optim.SGD, "LazyAdam": torch.optim.SparseAdam, "Adagrad": torch.optim.Adagrad}
    options = {"eps": ADAGRAD_EPSILON} if optimizer == "Adagrad" else {}
    rule = make[optimizer](layer.parameters(), lr=1e-3, **options)

    def step(inputs, gradient):
        rule.zero_grad(set_to_none=True)
        layer(*inputs).backward(gradient)
        rule.step()

    return layer, lambda ids: (ids.view(-1, bag) if bag > 1 else ids,), step


def fbgemm_embedding(rows, bag, device, optimizer):
    """Return the same of FBGEMM's table-batched embedding, whose backward pass updates the rows."""
    from fbgemm_gpu import split_embedding_configs as configs
    from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as training

    kinds = {"SGD": "EXACT_SGD", "Adagrad": "EXACT_ADAGRAD", "LazyAdam": "ADAM"}
    layer = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, common.EmbeddingLocation.DEVICE, training.ComputeDevice.CUDA)],
        optimizer=getattr(configs.EmbOptimType, kinds[optimizer]),
        learning_rate=1e-3,
        eps=ADAGRAD_EPSILON,
        pooling_mode=common.PoolingMode.SUM if bag > 1 else common.PoolingMode.NONE,
        device=torch.device(device),
    )
    return (
        layer,
        lambda ids: (ids, torch.arange(0, len(ids) + 1, bag, device=device)),
        lambda inputs, gradient: layer(*inputs).backward(gradient),
    )


def embedding(device, quick, make, library, kind, bag, optimizer):
    rows, ids = (20_000, 4_000) if quick else (ROWS, IDS)
    size = f"{TABLES} x {rows / TABLES * 1e-6:.2f}M" if kind == "tables" else f"{rows * 1e-6:.1f}M"
    named = "" if kind == "tables" else f" {kind}"
    bags = f"bags of {bag}" if bag > 1 else "no bags"
    case = f"{size} x {DIM} float32, {ids * 1e-6:.2f}M{named} ids, {bags}"
    layer, inputs_of, step = make(rows, bag, device, optimizer)
    generator = torch.Generator().manual_seed(1)
    batches = [inputs_of(ids_of(kind, ids, rows, generator).to(device)) for _ in range(4)]
    gradient = torch.randn(ids // bag, DIM, device=device) * 0.1
    repeats = 2 if quick else 20
    if optimizer == "SGD":
        with torch.no_grad():
            times = measure(lambda i: layer(*batches[i % 4]), device, repeats)
        report("embedding", case, "lookup", library, times)
    times = measure(lambda i: step(batches[i % 4], gradient), device, repeats)
    report("row_update", case, f"step with {optimizer}", library, times)


def whole(hidden, weight, bias, targets):
    """Return the mean cross-entropy. All logits are in memory."""
    logits = (hidden @ weight.T).float() + bias
    return torch.nn.functional.cross_entropy(logits, targets)


def in_chunks(hidden, weight, bias, targets, size=512):
    """Return the same, by so many tokens at a time, whose logits the backward pass computes again."""
    total = 0.0
    for h, t in zip(hidden.split(size), targets.split(size)):
        total = total + checkpoint(whole, h, weight, bias, t, use_reentrant=False) * (len(t) / len(targets))
    return total


def softmax(device, quick, loss, library, dim, dtype):
    classes, tokens = (1_000, 200) if quick else (100_000, 3_200)
    case = f"{classes} x {tokens} x {dim}, {str(dtype).removeprefix('torch.')}"
    hidden = torch.randn(tokens, dim, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(classes, dim, device=device) * 0.05).to(dtype).requires_grad_()
    bias = torch.randn(classes, device=device).requires_grad_()
    targets = torch.randint(classes, (tokens,), device=device)

    def both(_):
        hidden.grad = weight.grad = bias.grad = None
        loss(hidden, weight, bias, targets).backward()

    repeats = 2 if quick else 10
    with torch.no_grad():
        times = measure(lambda _: loss(hidden, weight, bias, targets), device, repeats)
    report("full_softmax", case, "terms", library, times)
    report("full_softmax", case, "terms + gradient", library, measure(both, device, repeats))


def adaptive(device, quick, words, pieces):
    """Measure loss, gradients and SGD of AdaptiveLogSoftmaxWithLoss, the tokens in so many pieces."""
    name = f"{words // 1_000_000}M words" if words >= 1_000_000 else f"{words // 1000}K words"
    dim, tokens = (36, 100) if quick else (304, 40_960)
    generator = torch.Generator().manual_seed(2)
    drawn = [power_law(tokens, words, 1.0001, generator, False).to(device) for _ in range(3)]
    hidden = torch.randn(tokens, dim, device=device) * 0.3
    cutoffs = [200] if quick else [cutoff for cutoff in (2_000, 40_000, 800_000) if cutoff < words]
    layer = torch.nn.AdaptiveLogSoftmaxWithLoss(dim, words, cutoffs).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        h = hidden.detach().requires_grad_()
        for part, targets in zip(h.chunk(pieces), drawn[i % 3].chunk(pieces)):
            (layer(part, targets).loss * (len(part) / tokens)).backward()
        optimizer.step()

    library = f"PyTorch AdaptiveLogSoftmaxWithLoss in {pieces} piece{'s' * (pieces > 1)}"
    times = measure(step, device, 2 if quick else 5)
    report("tree_softmax", f"{name}, Huffman 8", "loss + gradient + SGD", library, times)


def cases(device, quick):
    """Yield functions and their arguments, in the order of what is worth most."""
    yield (products,)
    makes = {"PyTorch": torch_embedding}
    if importlib.util.find_spec("fbgemm_gpu"):
        makes["FBGEMM"] = fbgemm_embedding
    for library, make in makes.items():
        for kind, bag in (("power-law", BAG), ("uniform", BAG), ("tables", 1)):
            for optimizer in ("SGD", "Adagrad", "LazyAdam"):
                yield embedding, make, library, kind, bag, optimizer
    losses = {"PyTorch": whole, "PyTorch in chunks": in_chunks}
    if device == "cuda" and importlib.util.find_spec("triton"):
        losses["torch.compile"] = torch.compile(whole, dynamic=False)
    for dim in (36,) if quick else (304, 1024):
        for dtype in (torch.float32, torch.bfloat16):
            for library, loss in losses.items():
                yield softmax, loss, library, dim, dtype
    # The logits of a cluster are one matrix: those of 10M words do not fit in one piece.
    for words, pieces in ((1_000, 2),) if quick else ((10_000_000, 16), (1_000_000, 1), (100_000, 1)):
        yield adaptive, words, pieces


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu.torch_peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try it out")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("PyTorch sees no GPU")
        return 77
    for function, *arguments in cases(options.device, options.quick):
        try:
            function(options.device, options.quick, *arguments)
        except Exception as error:  # whatever a peer raises: the others are measured
            print(f"left out: {function.__name__} {arguments}: {error!r}", flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
