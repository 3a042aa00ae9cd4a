"""The goals, and which of them the results reach."""

from dataclasses import dataclass

from benchmarks.gpu import _published
from benchmarks.gpu._jobs import FAILED, OK

REACHED, MISSED, NOT_MEASURED = "reached", "MISSED", "not measured"


def _verdict(text, wanted, measured, reached):
    """Return measured: what people read; None: nothing was measured."""
    verdict = NOT_MEASURED if measured is None else REACHED if reached else MISSED
    return {"goal": text, "wanted": wanted, "measured": measured, "verdict": verdict}


@dataclass(frozen=True)
class _Case:
    """A goal for our time of one case."""

    bench: str
    case: str
    part: str

    @property
    def text(self):
        return f"{self.case}: {self.part}"

    def found(self, results, cards=("",)):
        """Return our row, if it was measured on one of these cards."""
        fits = any(card in results.machine.get("card", "") for card in cards)
        return results.row(self.bench, self.case, self.part) if fits else None


@dataclass(frozen=True)
class Share(_Case):
    """Part of the copy bandwidth that it reaches at the least."""

    at_least: float

    def judge(self, results):
        row = self.found(results)
        share = results.limits.of_row(row)["share"] if row else None
        wanted = f"at least {self.at_least:.0%} of the copy bandwidth"
        return _verdict(self.text, wanted, share and f"{share:.0%}", share and share >= self.at_least)


@dataclass(frozen=True)
class Bound(_Case):
    """Times its bound, the larger of what bytes and flops cost at the least."""

    at_most: float

    def judge(self, results):
        row = self.found(results)
        at = results.limits.of_row(row) if row else {"over": None}
        shown = at["over"] and f"{at['over']:.2f} x ({at['by']})"
        wanted = f"at most {self.at_most:g} x bound"
        return _verdict(self.text, wanted, shown, shown and at["over"] <= self.at_most)


@dataclass(frozen=True)
class Time(_Case):
    """Milliseconds, on the cards that the goal was set for."""

    at_most: float
    cards: tuple = ("H100", "H200")

    def judge(self, results):
        row = self.found(results, self.cards)
        wanted = f"at most {self.at_most:g} ms on an {' or '.join(self.cards)}"
        return _verdict(self.text, wanted, row and f"{row['ms']:.3f} ms", row and row["ms"] <= self.at_most)


@dataclass(frozen=True)
class Against(_Case):
    """At least as fast as a peer, on the card that the peer's time is from."""

    library: str
    card: str

    def judge(self, results):
        row = self.found(results, (self.card,))
        peer = results.row(self.bench, self.case, self.part, self.library)
        ratio = peer["ms"] / row["ms"] if row and peer else None
        wanted = f"as fast as {self.library}, on an {self.card}"
        return _verdict(self.text, wanted, ratio and f"{ratio:.2f} x as fast", ratio and ratio >= 1)


@dataclass(frozen=True)
class Clean:
    """No program of a step fails, or of one tool of it."""

    text: str
    step: str
    prefix: str = ""

    def judge(self, results):
        found = [s for s in results.steps if s["step"] == self.step and s["name"].startswith(self.prefix)]
        failed = [s["name"] for s in found if s["status"] == FAILED]
        passed = [s["name"] for s in found if s["status"] == OK]
        shown = None
        if failed:
            shown = f"failed: {', '.join(failed)}"
        elif passed and len(passed) == len(found):
            shown = f"{len(passed)} passed"
        return _verdict(self.text, "none fails", shown, not failed)


_TABLE = "16.8M x 128 float32, 1.05M {} ids, bags of 8"
_FAN_IN = "670K x 32 {}, 32768 inputs, batch 32"
_BCE = "binary_crossentropy"
_TREE_STEP = "loss + gradient + SGD"
GOALS = (
    Clean("tests of CUDA kernels", "ctest"),
    *(Clean(tool, "sanitizers", f"{tool}-") for tool in ("memcheck", "racecheck", "synccheck", "initcheck")),
    *(Share("embedding", _TABLE.format(ids), "lookup", 0.65) for ids in ("power-law", "uniform")),
    *(
        Share("row_update", _TABLE.format(ids), "fused backward + SGD", 0.40)
        for ids in ("power-law", "uniform")
    ),
    *(
        Against(row["bench"], row["case"], row["part"], _published.LIBRARY, _published.CARD)
        for row in _published.ROWS
    ),
    Bound("tree_softmax", "10M words, Huffman 8", _TREE_STEP, 2.0),
    Bound("tree_softmax", "10M words, 448 + 64, then 16", _TREE_STEP, 3.0),
    *(Time("fan_in", _FAN_IN.format(dtype), _BCE, 0.6) for dtype in ("bfloat16", "float32")),
    *(
        Time("fan_in", _FAN_IN.format(dtype), f"{_BCE}, step {rule}", 1.2)
        for dtype in ("bfloat16", "float32")
        for rule in ("sgd", "lazy_adam")
    ),
)


def judge(results):
    return [goal.judge(results) for goal in GOALS]
