#!/bin/sh
# Builds the tests and benches of the CUDA kernels, for the architecture ARCH, in BUILD. Called by run.py.
set -eu
generator="" keep_going="-k" # a program that does not compile does not cost the others
if command -v ninja > /dev/null; then generator="-G Ninja" keep_going="-k 0"; fi
cmake -S custom_ops -B "$BUILD" $generator -DLARGEOUT_TF=OFF -DLARGEOUT_CUDA=ON -DLARGEOUT_EMULATE=OFF \
  -DLARGEOUT_CUDA_ARCHITECTURES="$ARCH" -DCMAKE_CUDA_FLAGS="-Xptxas=-v -lineinfo"
targets=$(ls custom_ops/*/test/*_test.cu custom_ops/*/test/*_bench.cu | sed 's|.*/||; s|\.cu$|_cuda|')
cmake --build "$BUILD" --parallel "$(nproc)" --target $targets -- $keep_going
