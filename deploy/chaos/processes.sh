#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants faults in processes of this host, such as those of `forepack up`, systemd or a shell. --help lists them.
. "$(dirname "$0")/common.sh"
platform="processes of this host"
faults="  kill        SIGKILL to process T; its launcher should start it again
  freeze      SIGSTOP to process T, later SIGCONT
  cut         process T is a running deploy/chaos/proxy.py between node and router; it passes nothing on
$FILE_FAULTS
  clock       T is the file FAKETIME_TIMESTAMP_FILE of a process under libfaketime; its clock goes ahead by an hour
  drain       SIGTERM to node T, which finishes its requests
  roll        replaces the nodes T: starts the same command, waits until it is ready, then drains T"

check_process() {
    local pid
    for pid in "${targets[@]}"; do
        [[ $pid =~ ^[0-9]+$ ]] && kill -0 "$pid" 2>/dev/null || wrong "--target '$pid': must be the number of a running process"
    done
}
gone() { ! kill -0 "$1" 2>/dev/null || [ "$(ps -o stat= -p "$1" | cut -c1)" = Z ]; }

check_kill() { check_process; }
plant_kill() {
    kill -KILL "${targets[0]}"
    wait_for 60 "process ${targets[0]} is gone" gone "${targets[0]}"
}

check_freeze() { check_process; }
plant_freeze() { kill -STOP "${targets[0]}"; }
heal_freeze() { kill -CONT "${targets[0]}" 2>/dev/null || true; }

check_cut() {
    check_process
    tr '\0' ' ' <"/proc/${targets[0]}/cmdline" | grep -F proxy.py >/dev/null || wrong "--target '${targets[0]}': is no deploy/chaos/proxy.py"
}
plant_cut() { kill -USR1 "${targets[0]}"; }
heal_cut() { kill -USR2 "${targets[0]}"; }

check_clock() {
    [ -w "${targets[0]}" ] || wrong "--target '${targets[0]}': must be the file that FAKETIME_TIMESTAMP_FILE of the process names"
}
plant_clock() { echo "+3600" >"${targets[0]}"; }
heal_clock() { echo "+0" >"${targets[0]}"; }

check_drain() { check_process; }
plant_drain() {
    kill -TERM "${targets[0]}"
    wait_for 3600 "node ${targets[0]} has left" gone "${targets[0]}"
}

check_roll() {
    check_process
    command -v forepack >/dev/null || wrong "forepack is not in PATH"
    local pid
    for pid in "${targets[@]}"; do
        ! tr '\0' '\n' <"/proc/$pid/cmdline" | grep -x -e '--node-id' >/dev/null || wrong "--target '$pid': has --node-id, which its successor cannot have"
    done
}
ready_nodes() {
    forepack status --json --server "$server" ${ca:+--tls-ca "$ca"} ${key:+--api-key-file "$key"} |
        jq '[.nodes[] | select(.state == "ready")] | length'
}
nodes_ready() { [ "$(ready_nodes)" -ge "$1" ]; }
plant_roll() {
    local pid wanted
    for pid in "${targets[@]}"; do
        local -a command environment
        mapfile -t -d '' command <"/proc/$pid/cmdline"
        mapfile -t -d '' environment <"/proc/$pid/environ"
        wanted=$(($(ready_nodes) + 1))
        (cd "$(readlink "/proc/$pid/cwd")" && exec setsid env -i "${environment[@]}" "${command[@]}") >"chaos-roll-$pid.log" 2>&1 </dev/null &
        echo "process $! replaces $pid, its log is chaos-roll-$pid.log"
        disown $!
        wait_for 3600 "the successor of $pid is ready" nodes_ready "$wanted"
        kill -TERM "$pid"
        wait_for 3600 "node $pid has left" gone "$pid"
    done
}
chaos_main "$@"
