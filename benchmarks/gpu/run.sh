#!/usr/bin/env bash
# Builds the CUDA kernels, tests them, measures them and PyTorch on the same sizes. Needs a GPU and Python, no
# TensorFlow. README.md has the three calls for a card that is borrowed for half an hour.
#
#   benchmarks/gpu/run.sh     what STEPS says, in its order
#
#   STEPS="configure build bench-quick ctest bench torch ncu report"    (the default), and: sanitizers
#   OUT=FOLDER       the report, at most 5 files, renewed after every program (default benchmarks/gpu/out;
#                    also as argument)
#   BUDGET=SECONDS   what would not fit is skipped, with a line that says so
#   BIN=FOLDER       with *_test_cuda and *_bench_cuda that were built before
#   BUILD=FOLDER     where to build (default build-gpu)
#   WORK=FOLDER      raw results and logs (default BUILD/results)
#   COMMIT=NAME      for a copy without Git; ARCH=90: for another architecture than the card's
#   JOBS=N           tests at once on the GPU (default 8); PYTHON=... another interpreter
#
# Exit code: 0 all passed or were skipped with a reason, 1 a program failed or was stopped, 77 there is no GPU.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "$python is not on the PATH: nothing was done."; exit 1; }
[ $# -eq 0 ] || OUT=$1
for folder in OUT BIN BUILD WORK; do
  [ -z "${!folder:-}" ] || export "$folder=$(realpath -m "${!folder}")"
done
cd "$root" && exec "$python" -B -m benchmarks.gpu
