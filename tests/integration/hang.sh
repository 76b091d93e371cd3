#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A hung rank of a worker group, here a stopped process, is named by the other ranks, and the group ends: a follower
# during a pass, and the leader at any time. A group of one rank whose pass or sampling hangs ends too, although its
# heartbeats go on.
. "$(dirname "$0")/lib.sh"

choose_ports
grammars=$bin/libfake_llguidance.so
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --grammar-library "$grammars"
wait_until 30 "the router answers" status_json

start_group() {
    start "$1" mpirun -n 2 --oversubscribe --bind-to none "$bin/forepack-worker" --model "$main_model" \
        --router "$node_server" --threads 1 --step-timeout-s 2
    group_pid=$last_pid
    wait_until 60 "the group answers" generate --prompt Hello --max-tokens 2 # followers learn the timeout with a pass
}

# stop_rank N: stops the process of rank N, one of mpirun's children, and puts its pid into $stopped.
stop_rank() {
    for stopped in $(cat "/proc/$group_pid/task/"*/children); do
        grep -qz "^OMPI_COMM_WORLD_RANK=$1\$" "/proc/$stopped/environ" && break
    done
    started+=("$stopped")
    kill -STOP "$stopped"
}

# ended LOG EVENT RANK: the event names the hung rank, and the group has ended with a failure.
ended() {
    wait_until 60 "rank $3 is named" grep -q "$2 reason=\"rank $3 (host $(uname -n), pid $stopped) does not answer" "$work/$1.log"
    local code=0
    wait "$group_pid" || code=$?
    [ $code != 0 ] || fail "the group ended with 0"
}

start_group follower-hangs
stop_rank 1
start asking "$bin/forepack" generate --server "$server" --prompt Hello --max-tokens 2
asking_pid=$last_pid
ended follower-hangs "step_stuck rows=[0-9]* timeout_ms=2000" 1

start_group leader-hangs
wait "$asking_pid" || fail "the request that the first group left was not answered"
stop_rank 0
ended leader-hangs "\(step\|group\)_stuck.*" 0

# One rank: its main thread stops inside a pass, all its other threads go on.
start alone "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --step-timeout-s 1
alone_pid=$last_pid
wait_until 60 "the group of one rank answers" generate --prompt Hello --max-tokens 2
stuck() { grep -q "step_stuck rows=[0-9]* timeout_ms=1000 reason=\"the pass makes no progress" "$work/alone.log"; }
# Exit code 77 if a single thread cannot be stopped here; else the thread is stopped until $stop_pid is killed.
stop_main_thread() {
    start stopped "$bin/stop_thread" "$alone_pid" # the main thread has the id of its process
    stop_pid=$last_pid
    stopped_or_ended() { grep -q stopped "$work/stopped.log" || ! kill -0 "$stop_pid"; }
    wait_until 30 "the main thread is stopped" stopped_or_ended
    grep -q stopped "$work/stopped.log" || wait "$stop_pid"
}
# Long prompts: the thread is hardly ever between two passes.
start asking "$bin/forepack" batch --server "$server" --input "$prompts" --output "$work/answers.jsonl" --prefill off --max-tokens 200
asking_pid=$last_pid
wait_until 30 "prompts are computed" status_is '.queue.running > 0'
until stuck; do
    kill -0 "$asking_pid" || fail "all prompts were answered before a pass was hit"
    code=0
    stop_main_thread || code=$?
    if [ $code = 77 ]; then
        echo "hang: a single thread cannot be stopped here (ptrace), so a hung pass of one rank was not tested"
        exit 77
    fi
    equal 0 $code "exit code of stop_thread"
    # If the thread stops between two passes, no pass hangs: the thread then runs on and is stopped again.
    for _ in {1..30}; do stuck || sleep 0.1; done
    stuck || { kill -KILL "$stop_pid" && wait "$stop_pid"; } || true
done
wait_until 60 "the router has lost it" status_is '.nodes == []'
kill -KILL "$stop_pid" 2>/dev/null || true
code=0
wait "$alone_pid" || code=$?
equal 1 "$code" "exit code of the group of one rank"

start sampling "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --step-timeout-s 1 \
    --grammar-library "$grammars"
sampling_pid=$last_pid
wait_until 60 "the last group answers" generate --prompt Hello --max-tokens 2
start asking "$bin/forepack" generate --server "$server" --prompt Hello --guided-regex hang --max-tokens 2
wait_until 60 "the hung sampling is logged" \
    grep -q "step_stuck rows=[0-9]* timeout_ms=1000 reason=\"sampling on the host makes no progress" "$work/sampling.log"
code=0
wait "$sampling_pid" || code=$?
equal 1 "$code" "exit code of the group whose sampling hung"
echo "hang: all passed"
