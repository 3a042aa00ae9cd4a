"""The card's matrix products; then PyTorch, and FBGEMM where it is installed, on our benches' sizes.

Run by `run.sh`; alone: `python -m benchmarks.gpu.compare_torch [--json FILE] [--quick] [--device cpu]`.
"""

import argparse
import importlib.util
import json
import sys
import time

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(77)

from benchmarks.gpu import _torch_embedding, _torch_softmax
from benchmarks.gpu._torch_embedding import BAG, DIM, TABLES

IDS, ROWS = 1_048_560, 1_677_721 * TABLES  # as NVIDIA's benchmark of FBGEMM
WORDS, HIDDEN, TOKENS = 10_000_000, 304, 40_960
CUTOFFS = [2_000, 40_000, 800_000]
TREE_STEP = "loss + gradient + SGD"


class Clock:
    """Times calls: by events on a GPU."""

    def __init__(self, device):
        self._gpu = device == "cuda"

    def _once(self, call, i):
        if not self._gpu:
            began = time.perf_counter()
            call(i)
            return 1e3 * (time.perf_counter() - began)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(
            400_000
        )  # as in cuda_bench.cuh: the host is ahead of the card, launches are not timed
        start.record()
        call(i)
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop)

    def __call__(self, call, repeats):
        """Return median, first and last decile of `call(i)`, in milliseconds."""
        for i in range(3):
            call(i)
        times = sorted(self._once(call, i) for i in range(repeats))
        return times[repeats // 2], times[repeats // 10], times[repeats - 1 - repeats // 10]


class Report:
    """A line for people, and one for the report. A peer that fails costs its own lines alone."""

    def __init__(self, path):
        self._file = open(path, "a") if path else None  # noqa: SIM115 (open for the whole run)

    def write(self, row):
        if self._file:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def __call__(self, bench, case, part, library, times):
        median, low, high = times
        shown = f"{bench:14} {case:50} {part:22} {median:9.3f} ms ({low:.3f} .. {high:.3f})  {library}"
        print(shown, flush=True)
        row = {"bench": bench, "case": case, "part": part, "library": library}
        self.write(row | {"ms": median, "low": low, "high": high})

    def attempt(self, name, function, *args):
        try:
            function(*args)
        except Exception as error:  # whatever a peer raises: the others are measured
            print(f"left out: {name}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class Peers:
    def __init__(self, report, device, quick):
        self.report, self.device, self.quick = report, device, quick
        self.clock, self.repeats = Clock(device), 3 if quick else 20

    def products(self):
        """Print the flops per second of a large matrix product in each type."""
        size = 256 if self.quick else 8192
        rates = {}
        for name, dtype, tf32 in (
            ("float32", torch.float32, False),
            ("tf32", torch.float32, True),
            ("bfloat16", torch.bfloat16, False),
        ):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            a, b = (torch.randn(size, size, device=self.device, dtype=dtype) for _ in range(2))
            median, _, _ = self.clock(lambda _, a=a, b=b: a @ b, self.repeats)
            rates[name] = 2.0 * size**3 / median * 1e3
            print(f"matrix product {size}^3 in {name}: {rates[name] * 1e-12:.1f} TFLOP/s", flush=True)
        torch.backends.cuda.matmul.allow_tf32 = False  # as our kernels: float32 products
        device = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        self.report.write({"bench": "torch", "case": "machine", "device": device, "gemm_flops_per_s": rates})

    def embedding(self, make, kind, bag):
        rows, ids = (20_000, 4_000) if self.quick else (ROWS, IDS)
        if self.device == "cuda" and 4.0 * rows * DIM * 4 > 0.9 * torch.cuda.mem_get_info()[0]:
            return print(f"left out: embedding of {rows} rows: too little memory")
        size = f"{TABLES} x {rows / TABLES * 1e-6:.2f}M" if kind == "tables" else f"{rows * 1e-6:.1f}M"
        named = "" if kind == "tables" else f" {kind}"
        bags = f"bags of {bag}" if bag > 1 else "no bags"
        case = f"{size} x {DIM} float32, {ids * 1e-6:.2f}M{named} ids, {bags}"
        table = make(rows, bag, self.device)
        generator = torch.Generator().manual_seed(1)
        drawn = [_torch_embedding.ids_of(kind, ids, rows, generator) for _ in range(4)]
        batches = [table.shaped(one.to(self.device)) for one in drawn]
        gradient = torch.randn(ids // bag, DIM, device=self.device) * 0.1
        times = self.clock(lambda i: table.lookup(batches[i % 4]), self.repeats)
        self.report("embedding", case, "lookup", table.library, times)
        for name in table.optimizers:
            table.train_with(name)
            times = self.clock(lambda i: table.step(batches[i % 4], gradient), self.repeats)
            self.report("row_update", case, f"step with {name}", table.library, times)
        return None

    def softmax(self, loss, library, classes, tokens, dim, dtype):
        name = str(dtype).removeprefix("torch.")
        case = f"{classes} x {tokens} x {dim}, {name}"
        hidden, weight = (
            (torch.randn(n, dim, device=self.device) * scale).to(dtype).requires_grad_()
            for n, scale in ((tokens, 1.0), (classes, 0.05))
        )
        bias = torch.randn(classes, device=self.device).requires_grad_()
        targets = torch.randint(classes, (tokens,), device=self.device)

        def forward(_):
            with torch.no_grad():
                loss(hidden, weight, bias, targets)

        def both(_):
            hidden.grad = weight.grad = bias.grad = None
            loss(hidden, weight, bias, targets).backward()

        repeats = min(10, self.repeats)
        self.report("full_softmax", case, "terms", library, self.clock(forward, repeats))
        self.report("full_softmax", case, "terms + gradient", library, self.clock(both, repeats))

    def adaptive(self, words, tokens, cutoffs):
        """Return loss, gradients and SGD.

        The logits of a cluster are one matrix [tokens in it, words in it]: tokens pass in as few pieces as
        memory allows.
        """
        case = f"{words // 1_000_000}M words" if words >= 1_000_000 else f"{words // 1000}K words"
        generator = torch.Generator().manual_seed(2)
        drawn = [_torch_embedding.power_law(tokens, words, 1.0001, generator, False) for _ in range(3)]
        targets = [one.to(self.device) for one in drawn]
        hidden = [torch.randn(tokens, HIDDEN, device=self.device) * 0.3 for _ in range(3)]
        layer = torch.nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, words, cutoffs).to(self.device)
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
                times = self.clock(step, min(5, self.repeats))
            except torch.OutOfMemoryError:
                optimizer.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
                pieces *= 4
                continue
            library = f"PyTorch AdaptiveLogSoftmaxWithLoss, {pieces} piece{'s' if pieces > 1 else ''}"
            return self.report("tree_softmax", f"{case}, Huffman 8", TREE_STEP, library, times)
        return print(f"left out: AdaptiveLogSoftmaxWithLoss, {case}: does not fit the GPU in 4096 pieces")


def measure(peers):
    attempt, quick = peers.report.attempt, peers.quick
    attempt("matrix products", peers.products)
    tables = [_torch_embedding.TorchTable]
    try:
        found = importlib.util.find_spec("fbgemm_gpu") is not None
        if found:
            importlib.import_module("fbgemm_gpu")
    except Exception as error:  # its library was built for another PyTorch, say
        print(f"left out: FBGEMM does not load: {error}")
        found = False
    if found:
        tables.append(_torch_embedding.FbgemmTable)
    for make in tables:
        for kind, bag in (("power-law", BAG), ("uniform", BAG), ("tables", 1)):
            attempt(f"{make.library}, {kind}", peers.embedding, make, kind, bag)
    softmax(peers, {"PyTorch": _torch_softmax.whole, "PyTorch, in chunks": _torch_softmax.chunked})
    if quick:
        attempt("adaptive softmax", peers.adaptive, 1_000, 100, [50, 200])
    for words in () if quick else (WORDS, 1_000_000, 100_000):
        cutoffs = [c for c in CUTOFFS if c < words]
        attempt(f"adaptive softmax, {words} words", peers.adaptive, words, TOKENS, cutoffs)
    if peers.device == "cuda" and importlib.util.find_spec("triton") is not None:
        softmax(peers, {"torch.compile": torch.compile(_torch_softmax.whole, dynamic=False)})
    else:
        print("left out: torch.compile: there is no Triton, or no GPU")


def softmax(peers, losses):
    for dim in (36,) if peers.quick else (304, 1024):
        for dtype in (torch.float32, torch.bfloat16):
            for library, loss in losses.items():
                sizes = (1_000, 200, dim) if peers.quick else (100_000, 3_200, dim)
                peers.report.attempt(f"softmax, {library}", peers.softmax, loss, library, *sizes, dtype)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="append one JSON object a line to this file")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: to try it out")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return 77
    measure(Peers(Report(args.json), args.device, args.quick))
    return 0


if __name__ == "__main__":
    sys.exit(main())
