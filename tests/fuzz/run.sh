#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs fuzz targets of the preset `fuzz` one after another and adds their CPU time to tests/fuzz/LOG.md.
# Usage: tests/fuzz/run.sh [--seconds N] [--pieces N] [--seed N] [--no-log] [TARGET...]
#        tests/fuzz/run.sh --merge [TARGET...]
#   --seconds N  time of a piece, which is one run of one target (default 60)
#   --pieces N   run N pieces, each of the target with the least time in the log; default: one piece of every target
#   --seed N     draw the same inputs in every run; default: different ones each time
#   --no-log     leave the log as it is
#   --merge      write to corpus/TARGET.zip a minimal set of inputs that reach code which corpus/TARGET does not reach
# Seeds are the files in corpus/TARGET and the inputs of earlier runs in corpus/TARGET.zip.
# Inputs that reach new code are added to $FUZZ_FOUND/TARGET. An input that fails is stored as $FUZZ_FOUND/failed/TARGET-*,
# the time of its target is set to 0, and the exit code is 1.
# Environment: FUZZ_BUILD, the build folder (build/fuzz); FUZZ_FOUND (build/fuzz/found); FUZZ_LOG, another log; FUZZ_WRAP, a
# command to start each piece with.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${FUZZ_BUILD:-$root/build/fuzz}
found=${FUZZ_FOUND:-$build/found}
log=${FUZZ_LOG:-$root/tests/fuzz/LOG.md}
seconds=60 pieces=0 seed=0 merge=false write_log=true targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2; shift ;;
    --pieces) pieces=$2; shift ;;
    --seed) seed=$2; shift ;;
    --merge) merge=true ;;
    --no-log) write_log=false ;;
    --help) sed -n '3,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "unknown flag $1 (--help lists all)" >&2; exit 2 ;;
    *) targets+=("$1") ;;
    esac
    shift
done
if [ ${#targets[@]} = 0 ]; then
    for file in "$build"/fuzz/*.options; do
        targets+=("$(basename "$file" .options)")
    done
fi

# --- the log: a row for each target, | target | minutes | inputs | edges | commit |

# log_add TARGET SECONDS INPUTS EDGES: adds to the row of the target; SECONDS `failed` starts it over.
log_add() {
    local commit
    commit=$(git -C "$root" log -1 --format=%h -- . ':!tests/fuzz/LOG.md' ':!tests/fuzz/corpus')
    awk -F' *[|] *' -v target="$1" -v seconds="$2" -v inputs="$3" -v edges="$4" -v commit="$commit" '
        function row(minutes, n) { printf "| %s | %.1f | %d | %d | %s |\n", target, minutes, n, edges, commit; seen = 1 }
        $2 == target { row(seconds == "failed" ? 0 : $3 + seconds / 60, seconds == "failed" ? 0 : $4 + inputs); next }
        { print }
        END { if (!seen) row(seconds / 60, inputs) }' "$log" >"$build/log.new"
    cat "$build/log.new" >"$log"
}

least_time() {
    for target in "${targets[@]}"; do
        awk -F' *[|] *' -v target="$target" '$2 == target {minutes = $3} END {print minutes + 0, target}' "$log"
    done | sort -n | sed -n '1s/.* //p'
}

# --- one piece

# fuzz TARGET ARGUMENTS...
fuzz() {
    local target=$1
    shift
    # shellcheck disable=SC2046,SC2086
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 ${FUZZ_WRAP:-} "$build/bin/$target" \
        $(cat "$build/fuzz/$target.options") -timeout=20 -rss_limit_mb=2048 "$@"
}

# What libFuzzer prints: the value of "stat::NAME: N", and the last "cov: N".
inputs_of() { awk '$1 == "stat::number_of_executed_units:" {print $2}' "$1"; }
edges_of() { awk '{for (i = 1; i < NF; i++) if ($i == "cov:") n = $(i + 1)} END {print n + 0}' "$1"; }

# unpack TARGET: adds the inputs of earlier runs to the inputs found here.
unpack() {
    local zip=$root/tests/fuzz/corpus/$1.zip
    mkdir -p "$found/$1" "$found/failed"
    [ ! -e "$zip" ] || (cd "$found/$1" && cmake -E tar xf "$zip")
}

failed=0
run_piece() {
    local target=$1 output=$build/fuzz/$1.output corpus=$root/tests/fuzz/corpus/$1 cpu status=0 TIMEFORMAT='%U %S'
    unpack "$target"
    { time fuzz "$target" -max_total_time="$seconds" -seed="$seed" -print_final_stats=1 -artifact_prefix="$found/failed/$target-" \
        "$found/$target" "$corpus" >"$output" 2>&1; } 2>"$output.time" || status=$?
    if [ $status = 0 ]; then
        cpu=$(awk '{print int($1 + $2)}' "$output.time")
        echo "$target: $cpu s of CPU time, $(inputs_of "$output") inputs, $(edges_of "$output") edges"
        ! $write_log || log_add "$target" "$cpu" "$(inputs_of "$output")" "$(edges_of "$output")"
    else
        failed=1
        tail -n 80 "$output"
        echo "$target FAILED, see $output"
        ! $write_log || log_add "$target" failed 0 "$(edges_of "$output")"
    fi
}

merge_corpus() {
    local corpus=$root/tests/fuzz/corpus/$1 least=$build/merge/$1
    unpack "$1"
    rm -rf "$least"
    mkdir -p "$least"
    cp "$corpus"/* "$least"
    fuzz "$1" -set_cover_merge=1 "$least" "$found/$1" >"$build/fuzz/$1.output" 2>&1
    (cd "$least" && comm -23 <(ls) <(ls "$corpus") >"$least.files" &&
        cmake -E tar cf "$corpus.zip" --format=zip --mtime="1980-01-01 UTC" --files-from="$least.files")
    echo "$1: $(wc -l <"$least.files") inputs, $(stat -c %s "$corpus.zip") bytes"
}

if $merge; then
    for target in "${targets[@]}"; do merge_corpus "$target"; done
elif [ "$pieces" -gt 0 ]; then
    for ((i = 0; i < pieces; i++)); do run_piece "$(least_time)"; done
else
    for target in "${targets[@]}"; do run_piece "$target"; done
fi
exit $failed
