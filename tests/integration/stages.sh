#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Worker groups with pipeline stages: wrong options are refused in one sentence, and every answer is the one of a group
# without stages: alone, together, preempted, drafted, cached, structured. A group drains, and a hung or killed rank of
# another stage ends it; its requests are answered by the next group.
# Usage: stages.sh [REQUESTS]: in each way; 44 by default
. "$(dirname "$0")/lib.sh"
"$source_dir/deploy/llguidance.sh" "$(cd "$bin/../.." && pwd)/llguidance" || { [ "${CI:-}" != true ] && exit 77; }
choose_ports
requests=${1:-44}
mpi=(mpirun --oversubscribe --bind-to none)
worker=("$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --max-num-seqs 12 --step-timeout-s 2)

# refused PATTERN COMMAND...: exit code 2, and one line of the programs that matches.
refused() {
    local pattern=$1 code=0
    shift
    "$@" >"$work/out" 2>&1 </dev/null || code=$?
    equal 2 $code "exit code of $*: $(head -c 600 "$work/out")"
    equal 1 "$(grep -c '^forepack-' "$work/out")" "lines of $*: $(head -c 600 "$work/out")"
    grep -qE "^forepack-[a-z]+: .*$pattern" "$work/out" || fail "$*: '$(head -c 600 "$work/out")' does not match '$pattern'"
}
refused "pp: a speculator has one stage" "$bin/forepack-speculator" --model "$spec_model" --pp 2
refused "pp 2: 1 ranks cannot be divided" "${worker[@]}" --pp 2
refused "pp 2: 3 ranks cannot be divided" "${mpi[@]}" -n 3 "${worker[@]}" --pp 2
refused "pp-layers 4: must be 2 numbers" "${mpi[@]}" -n 2 "${worker[@]}" --pp 2 --pp-layers 4
refused "pp-layers 1,2: these are 3 layers, but the model has 4" "${mpi[@]}" -n 2 "${worker[@]}" --pp 2 --pp-layers 1,2
refused "pp 1, .* but pp 2, .* on rank 0: give all ranks the same value" \
    "${mpi[@]}" -n 1 "${worker[@]}" --pp 2 : -n 1 "${worker[@]}"
refused "pp-layers 3,1, but .* 1,3 on rank 0" \
    "${mpi[@]}" -n 1 "${worker[@]}" --pp 2 --pp-layers 1,3 : -n 1 "${worker[@]}" --pp 2 --pp-layers 3,1
refused "pp-layers 5,1: these are 6 layers" "${worker[@]}" --pp 2 --pp-layers 5,1 --check-config
"${worker[@]}" --pp 2 --check-config >"$work/out" 2>&1 || fail "--check-config: $(cat "$work/out")"

start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 500 --worker-grace-ms 600000 \
    --score-timeout-ms 600000 --speculate-min-tokens 64 --chat-template "$source_dir/tests/integration/tools.jinja"
# A speculator with the main model, so that many draft tokens are right.
start speculator "$bin/forepack-speculator" --model "$main_model" --router "$node_server" --threads 1
wait_until 60 "the speculator is attached" nodes speculator 1

# start_group NAME RANKS OPTIONS...
start_group() {
    start "$1" "${mpi[@]}" -n "$2" "${worker[@]}" "${@:3}"
    group=$last_pid
    wait_until 60 "group $1 is ready" nodes worker 1
}
drain_group() {
    wait_until 60 "all blocks are returned" all_returned
    kill -USR1 "$group"
    local code=0
    wait "$group" || code=$?
    equal 0 $code "exit code of a drained group"
    wait_until 60 "the group has left" nodes worker 0
}
ask() { # ask ANSWERS STEP...
    local answers=$1 step
    for step in "${@:2}"; do
        python3 "$source_dir/tests/integration/matrix/determinism.py" "$http_port" "$prompts" "$work/$answers" "$requests" "$step" \
            >"$work/step" || fail "$(cat "$work/step")"
        cat "$work/step"
    done
}

start_group one 1
ask tp1 first
drain_group
start_group pp2 2 --pp 2
ask tp1 together alone drafted
drain_group
start_group uneven 2 --pp 2 --pp-layers 1,3 --kv-blocks 400 # few blocks: sequences are preempted
ask tp1 together drafted
drain_group
start_group pp4 4 --pp 4
ask tp1 together
drain_group
start_group tp2 2
ask tp2 first
drain_group
start_group tp2pp2 4 --pp 2
ask tp2 together drafted
drain_group

# stop_rank SIGNAL N: sends a signal to rank N, one of mpirun's children, and puts its pid into $stopped.
stop_rank() {
    for stopped in $(cat "/proc/$group/task/"*/children); do
        grep -qz "^OMPI_COMM_WORLD_RANK=$2\$" "/proc/$stopped/environ" && break
    done
    started+=("$stopped")
    kill "-$1" "$stopped"
}
ended() { # ended LOG PATTERN
    wait_until 60 "$2 is logged" grep -q "$2" "$work/$1.log"
    local code=0
    wait "$group" || code=$?
    [ $code != 0 ] || fail "the group ended with 0"
}
for signal in STOP KILL; do
    start_group "lost-$signal" 2 --pp 2
    generate --prompt Hello --max-tokens 2 >"$work/before.json" # followers learn the timeout with a pass
    stop_rank $signal 1
    start asking "$bin/forepack" generate --server "$server" --json --prompt Hello --max-tokens 2
    asking=$last_pid
    ended "lost-$signal" "$([ $signal = STOP ] && echo step_stuck || echo rank_lost).*rank 1 (host "
    start_group "after-$signal" 2 --pp 2
    wait "$asking" || fail "the request that the first group left was not answered"
    equal "$(jq -c .token_ids "$work/before.json")" "$(jq -c .token_ids "$work/asking.log")" "tokens after a replay"
    drain_group
done
echo "stages: passed"
