#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages, builds, checks the sources and runs every test that needs no GPU. Ends with CTest's summary.
# Usage: tests/run.sh [CTest options, such as -R scheduler]
set -euo pipefail
cd "$(dirname "$0")/.."
./deploy/packages.sh

# The release build includes the CUDA backend where the toolkit is installed: such programs must also run on the CPU.
exists() { for path; do [ ! -e "$path" ] || return 0; done && return 1; }
cuda=OFF
if ! exists "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; then
    echo "skipped: nvcc is not installed, the CUDA backend is not built"
elif ! exists /usr/include/nccl.h /usr/local/include/nccl.h /usr/local/cuda/include/nccl.h; then
    echo "skipped: nccl.h is not installed, the CUDA backend is not built"
else
    cuda=ON
fi
dev=() release=(-DFOREPACK_CUDA=$cuda)
if [ "${CI:-}" = true ]; then # compiles less: line numbers only, no code for sm_100 (it has no source lines of its own)
    dev=(-DCMAKE_C_FLAGS_DEBUG=-g1 -DCMAKE_CXX_FLAGS_DEBUG=-g1)
    release+=("-DCMAKE_CUDA_ARCHITECTURES=80-real;90a-real")
fi
cmake --preset release "${release[@]}" >/dev/null &
cmake --preset dev "${dev[@]}" | sed -n 's/^-- skipped:/skipped:/p'
wait $!
for preset in dev release; do
    cmake --build --preset "$preset"
done

lint=0
tests/lint.sh build/dev || lint=$?
[ $lint = 0 ] || { [ $lint = 77 ] && [ "${CI:-}" != true ]; } || exit 1

# CONTRIBUTING.md says which tests have the labels `release` and `dev`: they run in that build alone. Tests that take
# minutes run by `ctest --preset release -L 'kit|long'`. One test more than there are cores, since some wait most of the
# time.
jobs=$(($(nproc) + 1))
ctest --preset dev --parallel $jobs -LE release "$@"
ctest --preset release --parallel $jobs -LE 'dev|kit|long' "$@"

# Ten seconds of each fuzz target. A finding is stored as build/fuzz/found/failed/TARGET-*.
if command -v clang-14 >/dev/null; then
    cmake --preset fuzz >/dev/null
    cmake --build --preset fuzz
    ctest --preset fuzz --parallel "$(nproc)" "$@"
else
    [ "${CI:-}" != true ] || { echo "clang-14 is not installed (deploy/packages.sh --fuzz)" >&2; exit 1; }
    echo "skipped: clang-14 is not installed (deploy/packages.sh --fuzz), no fuzz target runs"
fi
