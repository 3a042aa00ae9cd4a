"""The card's own limits as measured, and how far from them a kernel is."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """copy: bytes a second, read plus written. fma, gemm: flops a second, gemm by dtype."""

    copy: float = 0.0
    fma: float = 0.0
    gemm: dict = field(default_factory=dict)

    @classmethod
    def of(cls, rows):
        """Return the best of the rows that every bench and compare_torch.py begin with."""

        def best(key):
            return max((row.get(key, 0.0) for row in rows), default=0.0)

        gemm = {}
        for row in rows:
            for dtype, rate in row.get("gemm_flops_per_s", {}).items():
                gemm[dtype] = max(rate, gemm.get(dtype, 0.0))
        return cls(best("copy_bytes_per_s"), best("fma_flops_per_s"), gemm)

    def rate(self, dtype):
        """Return flops a second that products of this type can reach. One of float32 may be three of TF32."""
        if dtype == "bfloat16":
            return max(self.fma, self.gemm.get("bfloat16", 0.0))
        return max(self.fma, self.gemm.get("tf32", 0.0) / 3)

    def of_row(self, row):
        """Return its `share` of the copy bandwidth, its time `over` the bound, and what bounds it: `by`."""
        short = "bfloat16" in row["case"] or "mixed" in row["case"]
        rate = self.rate("bfloat16" if short else "float32")
        bytes_ms = 1e3 * row.get("bytes", 0.0) / self.copy if self.copy else 0.0
        flops_ms = 1e3 * row.get("flops", 0.0) / rate if rate else 0.0
        bound = max(bytes_ms, flops_ms)
        return {
            "share": bytes_ms / row["ms"] if bytes_ms else None,
            "over": row["ms"] / bound if bound else None,
            "by": ("bytes" if bytes_ms >= flops_ms else "flops") if bound else "",
        }

    def lines(self):
        lines = []
        if self.copy:
            lines.append(f"copy {self.copy * 1e-9:.0f} GB/s (read + written)")
        if self.fma:
            lines.append(f"float32 multiply-adds {self.fma * 1e-12:.1f} TFLOP/s")
        for dtype, rate in sorted(self.gemm.items()):
            lines.append(f"matrix product in {dtype} {rate * 1e-12:.0f} TFLOP/s")
        return lines
