"""PyTorch on the sizes of the CUDA benches: EmbeddingBag with SGD and SparseAdam, AdaptiveLogSoftmaxWithLoss.

Run by `run.sh`; alone: `python benchmarks/gpu/compare_torch.py [--json FILE] [--quick]`.
"""

import argparse
import json
import sys

import torch

DIM, IDS, ROWS, BAG = 128, 1_050_000 // 8 * 8, 16_800_000, 8
WORDS, HIDDEN, TOKENS = 10_000_000, 304, 40_960
CUTOFFS = [2_000, 40_000, 800_000]


def power_law(n, rows, power, generator, spread):
    """Ids of a power law over [0, rows), drawn as the C++ benches draw them."""
    top = (rows + 1.0) ** (1.0 - power)
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    ids = (((top - 1.0) * u + 1.0) ** (1.0 / (1.0 - power))).long().sub(1).clamp(0, rows - 1)
    return ((ids * 2_654_435_761) % rows if spread else ids).cuda()


def milliseconds(call, repeats):
    """Median, first and last decile of `call(i)`, by events."""
    for i in range(3):
        call(i)
    times = []
    for i in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call(i)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    times.sort()
    return times[repeats // 2], times[repeats // 10], times[repeats - 1 - repeats // 10]


class Report:
    def __init__(self, path):
        self._file = open(path, "a") if path else None  # noqa: SIM115 (open for the whole run)

    def __call__(self, bench, case, part, library, times):
        median, low, high = times
        print(
            f"{bench:14} {case:34} {part:22} {median:9.3f} ms ({low:.3f} .. {high:.3f})  {library}",
            flush=True,
        )
        if self._file:
            row = {"bench": bench, "case": case, "part": part, "library": library}
            self._file.write(json.dumps(row | {"ms": median, "low": low, "high": high}) + "\n")
            self._file.flush()


def embedding(report, rows, ids, repeats):
    """One table of ten times 1.68M rows, as our bench and FBGEMM lay them out."""
    case = f"{rows * 1e-6:.1f}M x {DIM}, {ids * 1e-6:.2f}M ids"
    generator = torch.Generator().manual_seed(1)
    batches = [power_law(ids, rows, 1.05, generator, True).view(-1, BAG) for _ in range(4)]
    gradient = torch.randn(ids // BAG, DIM, device="cuda") * 0.1
    layer = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True, device="cuda")
    with torch.no_grad():
        layer.weight.uniform_(-0.1, 0.1)

        def lookup(i):
            layer(batches[i % 4])

        report("row_update", case, "lookup", "torch", milliseconds(lookup, repeats))
    optimizers = {
        "SGD": lambda p: torch.optim.SGD(p, lr=1e-3),
        "LazyAdam": lambda p: torch.optim.SparseAdam(p, lr=1e-3),
    }
    for name, make in optimizers.items():
        optimizer = make(layer.parameters())

        def step(i, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=True)
            layer(batches[i % 4]).backward(gradient)
            optimizer.step()

        part = "step with " + name
        report("row_update", case, part, "torch", milliseconds(step, repeats))


def adaptive(report, words, tokens, cutoffs, repeats):
    """Loss, gradients and SGD.

    The logits of a cluster are one matrix [tokens in it, words in it]: tokens pass in as few pieces as memory
    allows.
    """
    case = f"{words * 1e-6:.4g}M words"
    generator = torch.Generator().manual_seed(2)
    targets = [power_law(tokens, words, 1.0001, generator, False) for _ in range(3)]
    hidden = [torch.randn(tokens, HIDDEN, device="cuda") * 0.3 for _ in range(3)]
    layer = torch.nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, words, cutoffs).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pieces = 1
    while pieces <= 4096:

        def step(i, size=-(-tokens // pieces)):
            optimizer.zero_grad(set_to_none=True)
            h = hidden[i % 3].detach().requires_grad_()
            for at in range(0, tokens, size):
                part = slice(at, at + size)
                (layer(h[part], targets[i % 3][part]).loss * (h[part].shape[0] / tokens)).backward()
            optimizer.step()

        try:
            times = milliseconds(step, repeats)
        except torch.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            pieces *= 4
            continue
        library = f"torch AdaptiveLogSoftmaxWithLoss, {pieces} piece{'s' if pieces > 1 else ''}"
        report("tree_softmax", case, "loss + gradient + SGD", library, times)
        return
    print(f"tree_softmax   {case}: AdaptiveLogSoftmaxWithLoss does not fit the GPU in 4096 pieces")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="append one JSON object a line to this file")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False  # as our kernels: float32 products
    report = Report(args.json)
    if args.quick:
        embedding(report, 20_000, 4_000, 3)
        adaptive(report, 1_000, 100, [50, 200], 3)
        return 0
    rows, ids = ROWS, IDS
    while 4 * rows * DIM * 4 > 0.8 * torch.cuda.mem_get_info()[0]:
        rows, ids = rows // 2, ids // 16 * 8
    embedding(report, rows, ids, 20)
    torch.cuda.empty_cache()
    for words in (100_000, 1_000_000, WORDS):
        cutoffs = [c for c in CUTOFFS if c < words]
        adaptive(report, words, TOKENS, cutoffs, 5)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
