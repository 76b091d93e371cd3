#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A hung rank of a worker group, here a stopped process, is named by the other ranks, and the group ends: a follower
# during a pass, and the leader at any time.
. "$(dirname "$0")/lib.sh"

port=$(free_port)
server=127.0.0.1:$port
start router "$bin/forepack-router" --model "$main_model" --port "$port"
wait_until 30 "the router answers" status_json

start_group() {
    start "$1" mpirun -n 2 --oversubscribe --bind-to none "$bin/forepack-worker" --model "$main_model" \
        --router "$server" --threads 1 --step-timeout-s 2
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
echo "hang: all passed"
