#!/usr/bin/env bash
# Builds the CUDA kernels, tests them, measures them and PyTorch on the same sizes; needs no TensorFlow.
#
#   benchmarks/gpu/run.sh [OUT]       OUT: folder for results (default benchmarks/gpu/out)
#
# Wants a GPU, nvcc and cmake; python3 with PyTorch for the comparison; compute-sanitizer where it is on the PATH.
# PYTHON=... another interpreter, BUILD=... another build folder, QUICK=1: tiny sizes (does everything run?).
# Exit code: 0 all steps passed, 1 a step failed, 77 there is no GPU.
set -u -o pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:-$root/benchmarks/gpu/out}
mkdir -p "$out" && out=$(cd "$out" && pwd)
build=${BUILD:-$root/build-gpu}
python=${PYTHON:-python3}
quick=${QUICK:+--quick}
failed=()

if ! nvidia-smi -L >/dev/null 2>&1 || [ -z "$(nvidia-smi -L)" ]; then
  echo "no GPU: nvidia-smi finds none. Nothing was built, tested or measured."
  exit 77
fi
for tool in nvcc cmake; do
  command -v $tool >/dev/null || { echo "$tool is not on the PATH: nothing was built, tested or measured."; exit 1; }
done

# step NAME SECONDS COMMAND...: output into OUT/NAME.log; the end of it is shown where it failed.
step() {
  local name=$1 seconds=$2 start=$SECONDS rc
  shift 2
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1
  rc=$?
  case $rc in
    0) printf 'ok      %-34s %4d s\n' "$name" $((SECONDS - start)) ;;
    124) printf 'FAILED  %-34s %4d s: not done after %s s\n' "$name" $((SECONDS - start)) "$seconds" ;;
    *) printf 'FAILED  %-34s %4d s: exit code %d\n' "$name" $((SECONDS - start)) $rc ;;
  esac
  [ $rc -eq 0 ] || { failed+=("$name"); tail -n 40 "$out/$name.log"; }
  return $rc
}

arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/machine.txt"
nvcc --version | tail -n 2 >>"$out/machine.txt"
git -C "$root" rev-parse HEAD >>"$out/machine.txt" 2>/dev/null
rm -f "$out"/*.jsonl "$out"/*.log

generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
step configure 120 cmake -S "$root/custom_ops" -B "$build" "${generator[@]}" -DLARGEOUT_TF=OFF -DLARGEOUT_CUDA=ON \
  "-DLARGEOUT_CUDA_ARCHITECTURES=$arch" || exit 1
step build 900 cmake --build "$build" --parallel "$(nproc)" || exit 1

step ctest 600 ctest --test-dir "$build" --output-on-failure
grep -E 'tests passed|tests failed|\*\*\*' "$out/ctest.log"
if grep -q 'Skipped' "$out/ctest.log"; then
  echo "FAILED  tests of CUDA kernels were skipped on a machine with a GPU"
  failed+=(skipped-tests)
fi

if command -v compute-sanitizer >/dev/null; then
  for test in "$build"/*_test_cuda; do
    for tool in memcheck racecheck; do
      step "$tool-$(basename "$test")" 240 compute-sanitizer --tool $tool --error-exitcode 1 "$test"
    done
  done
else
  echo "left out: compute-sanitizer is not on the PATH"
fi

for bench in "$build"/*_bench_cuda; do
  name=$(basename "$bench")
  step "$name" 300 "$bench" --json "$out/$name.jsonl" $quick && cat "$out/$name.log"
done
if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  step compare_torch 300 "$python" "$root/benchmarks/gpu/compare_torch.py" --json "$out/torch.jsonl" $quick &&
    cat "$out/compare_torch.log"
else
  echo "left out: $python has no PyTorch that sees the GPU"
fi

"$python" "$root/benchmarks/gpu/report.py" "$out" || failed+=(report)
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}  (logs in $out)"
  exit 1
fi
echo "all steps passed; results in $out"
