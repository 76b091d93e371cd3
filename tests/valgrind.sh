#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs unit tests of a release build under valgrind's memcheck. Unlike the sanitizers of `dev`, it finds reads of uninitialised
# memory. One line per test; the reports are in BUILD_FOLDER/valgrind. Exit codes: 0 clean, 1 findings, 77 no valgrind.
# Usage: tests/valgrind.sh [BUILD_FOLDER] [PATTERN]     default build/release, and all tests except the ones listed below
# Builds the unit tests that a release build leaves out.
#
# Left out: scripts; tests of instruction sets that valgrind does not know (it reports a machine with AVX2); the emulated GPU,
# whose fibers switch stacks; ranks under mpirun; tests that measure heap, pages or descriptors, which valgrind changes, that
# fault on purpose, or that find their own program by /proc/self/exe; and tests that compute for minutes even without valgrind.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=${1:-build/release} pattern=${2:-.}
command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed" >&2; exit 77; }
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFOREPACK_ALL_TESTS=ON >/dev/null && cmake --build "$build" >/dev/null ||
    { echo "the tests cannot be built in $build" >&2; exit 1; }
build=$(realpath "$build")
left_out='cuda|gpu_|_mpi|avx512|amx|_data|check_golden|check_perplexity|check_net_python|check_net_authorise|check_http_load|check_log_writer|check_net_flood|check_bench|check_load$|check_prefix_index|check_model_storage|check_fp8_blocks|check_gpus|sim_seeds|integration|packaging'
mkdir -p "$build/valgrind"

# run_test NAME<tab>COMMAND
run_test() {
    local name=${1%%$'\t'*} log status
    log=$build/valgrind/$name.log
    # shellcheck disable=SC2086 # the command has no blanks in its words
    FOREPACK_SOURCE=$PWD FOREPACK_BIN=$build/bin CK_TIMEOUT_MULTIPLIER=100 \
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        valgrind --quiet --error-exitcode=99 --fair-sched=yes \
        --suppressions=tests/valgrind.supp --log-file="$log" ${1#*$'\t'} </dev/null >"$build/valgrind/$name.out" 2>&1
    status=$?
    if [ -s "$log" ]; then
        echo "$name: findings in $log"
        return 1
    fi
    echo "$name: $status"
    [ $status = 0 ] || [ $status = 77 ]
}
export build
export -f run_test
ctest --test-dir "$build" --show-only=json-v1 -L unit |
    jq -r --arg pattern "$pattern" --arg left_out "$left_out" '.tests[] |
        select((.name | test($pattern)) and (.name | test($left_out) | not) and (.command[0] | endswith("bash") | not)) |
        "\(.name)\t\(.command | join(" "))"' |
    xargs -d '\n' -r -n 1 -P "$(nproc)" bash -c 'run_test "$1"' run_test || exit 1
