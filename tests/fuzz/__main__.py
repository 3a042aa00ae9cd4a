"""Makes many random calls of every op, and says which of them crashed, hung or kept memory.

python -m tests.fuzz --calls 100000
python -m tests.fuzz --seed 3 --only 1234          # one call again
"""

import argparse
import collections
import concurrent.futures
import sys

from tests.fuzz.runs import run


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="make this call alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--piece", type=int, default=10000, help="calls per process")
    parser.add_argument("--no-limit", action="store_true", help="no limit of memory: for sanitizers")
    options = parser.parse_args()
    more = ["--no-limit"] if options.no_limit else []
    if options.only is not None:
        pieces = [(options.only, options.only + 1)]
    else:
        starts = range(0, options.calls, options.piece)
        pieces = [(start, min(start + options.piece, options.calls)) for start in starts]
    counts, defects, seconds, peak = collections.Counter(), [], 0.0, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
        for (start, stop), found in zip(
            pieces, threads.map(lambda p: run(*p, options.seed, options=more), pieces)
        ):
            for defect in found["defects"]:
                print(f"DEFECT {defect['index']}: {defect['call']}\n{defect['what']}\n", flush=True)
            counts.update(found["counts"])
            defects += found["defects"]
            seconds += found["cpu_seconds"]
            peak = max(peak, found["peak_megabytes"])
            print(f"calls {start} .. {stop}: {len(found['defects'])} defects", flush=True)
    for op in sorted({key.split(" ")[0] for key in counts if key.startswith("Largeout>")}):
        print(f"{op:40}{counts[f'{op} ok']:8} accepted{counts[f'{op} error']:8} refused")
    print(
        f"{counts['ok']} accepted, {counts['error']} refused, {len(defects)} defects; "
        f"{seconds:.0f} s of CPU, {peak} MB at the peak"
    )
    sys.exit(bool(defects))


if __name__ == "__main__":
    main()
