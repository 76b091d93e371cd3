#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages, builds and tests. Ends with one line: N passed, N failed, N skipped.
# Usage: tests/run.sh [--all | --deploy] [CTest options, such as -R scheduler]
#   Without --all: the release build with its unit tests and the integration tests of a user's paths. Tests that passed
#   before with the same programs are not repeated.
#   --all: every test that needs no GPU, in a build with sanitizers too, on the emulated GPU, the fuzz targets, the lint, the
#   counts of instructions and the GPU kit. Left out are the labels `suites`, `deploy` and `long`.
#   --deploy: packages in a booted systemd, images in podman, jobs in Slurm (label `deploy`); needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
all=0
if [ "${1:-}" = --all ]; then
    all=1
    shift
elif [ "${1:-}" = --deploy ]; then
    shift
    ./deploy/packages.sh --deploy
    cmake --preset release >/dev/null
    cmake --build --preset release
    failed=0
    tests/ctest.py run build/release deploy -L deploy "$@" || failed=1
    tests/ctest.py summary build/release/deploy.xml || failed=1
    exit $failed
elif [ "${1:-}" = --help ]; then
    sed -n '3,10s/^# \{0,1\}//p' "$0"
    exit 0
fi
./deploy/packages.sh

failed=0
skipped() {
    echo "skipped: $*"
}

if [ $all = 0 ]; then
    cmake --preset release -DFOREPACK_ALL_TESTS=ON >/dev/null
    cmake --build --preset release
    # Left out: unit tests that take 12 seconds or more, and tests of the emulated GPU. --all runs them.
    slow='check_(golden_(cuda|reference)|tokenizer_files|exactness_amx-emulated.*|model_forward|fp8_blocks|scan_cost)|'
    slow+='check_(bin_message|perplexity|row_sampling_cuda|cuda_.*)|sim_(plan|seeds)'
    tests/ctest.py run build/release quick --changed --parallel $(($(nproc) + 1)) -L 'unit|paths' -LE 'dev|kit|long' \
        -E "^($slow)\$" "$@" || failed=1
    tests/ctest.py summary build/release/quick.xml || failed=1
    exit $failed
fi

# The release build includes the CUDA backend if the toolkit is installed: such programs must also run on the CPU.
exists() { for path; do [ ! -e "$path" ] || return 0; done && return 1; }
cuda=OFF
if ! exists "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; then
    skipped "nvcc is not installed, the CUDA backend is not built"
elif ! exists /usr/include/nccl.h /usr/local/include/nccl.h /usr/local/cuda/include/nccl.h; then
    skipped "nccl.h is not installed, the CUDA backend is not built"
else
    cuda=ON
fi
dev=() release=(-DFOREPACK_CUDA=$cuda -DFOREPACK_ALL_TESTS=OFF)
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

# The simulator explores other seeds for each commit.
export FOREPACK_SEED=$((16#$(git rev-parse --short=8 HEAD 2>/dev/null | cut -c1-8 || echo 1)))
echo "the simulator begins with seed $FOREPACK_SEED"

lint=0
tests/lint.sh build/dev || lint=$?
[ $lint = 0 ] || { [ $lint = 77 ] && [ "${CI:-}" != true ]; } || exit 1

# CONTRIBUTING.md says which tests have the labels `release` and `dev`: they run in that build alone. One test more than there
# are cores, since some wait most of the time.
jobs=$(($(nproc) + 1))
results=() ran=0
# tests_of BUILD NAME OPTIONS...: runs tests, which count in the summary.
tests_of() {
    local build=$1 name=$2 code=0
    shift 2
    tests/ctest.py run "build/$build" "$name" "$@" || code=$?
    [ $code != 2 ] || return 0 # no test of this build matches the options
    [ $code = 0 ] || failed=1
    ran=1
    results+=("build/$build/$name.xml")
}
tests_of dev dev --parallel $jobs -LE 'release|suites|deploy|long' "$@"
tests_of release release --parallel $jobs -LE 'dev|suites|deploy|long' "$@"

# Ten seconds of each fuzz target. A finding is stored as build/fuzz/found/failed/TARGET-*.
if command -v clang-14 >/dev/null; then
    cmake --preset fuzz >/dev/null
    cmake --build --preset fuzz
    tests_of fuzz fuzz --parallel "$(nproc)" "$@"
else
    [ "${CI:-}" != true ] || { echo "clang-14 is not installed (deploy/packages.sh --fuzz)" >&2; exit 1; }
    skipped "clang-14 is not installed (deploy/packages.sh --fuzz), no fuzz target runs"
fi
tests/ctest.py summary "${results[@]}" || failed=1
[ $ran = 1 ] || failed=1
exit $failed
