#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test that needs no GPU; ends with CTest's summary.
# Usage: tests/run.sh [CTest options, such as -R scheduler]
set -euo pipefail
cd "$(dirname "$0")/.."
./deploy/packages.sh

# `dev` finds memory errors in every unit test; `release` is what users run, so the integration tests run on it too: with
# the CUDA backend beside the programs where it can be built, since such programs are to serve on the CPU as well.
there() { for path; do [ ! -e "$path" ] || return 0; done && return 1; }
cuda=OFF
if ! there "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; then
    echo "skipped: nvcc is not there, the CUDA backend is not built"
elif ! there /usr/include/nccl.h /usr/local/include/nccl.h /usr/local/cuda/include/nccl.h; then
    echo "skipped: NCCL's nccl.h is not there, the CUDA backend is not built"
else
    cuda=ON
fi
cmake --preset dev | sed -n 's/^-- skipped:/skipped:/p'
cmake --preset release -DFOREPACK_CUDA=$cuda >/dev/null
for preset in dev release; do
    cmake --build --preset "$preset"
done
ctest --preset dev --parallel 2 "$@"
ctest --preset release --parallel 2 "$@"
