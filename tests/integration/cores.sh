#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cores of compute threads: the first threads of two nodes get different cores, the second threads are bound, --cpus
# restricts every thread, status and the log say what decided, and a wrong list is one sentence and exit code 2.
. "$(dirname "$0")/lib.sh"

# Prints the masks of all threads of the nodes that forepack up has started.
node_masks() {
    local pid
    for pid in $(cat "/proc/$up_pid/task/$up_pid/children"); do
        [[ $(readlink "/proc/$pid/exe") =~ /forepack-(worker|speculator)$ ]] || continue
        cat "/proc/$pid"/task/*/status 2>/dev/null | awk '/^Cpus_allowed_list/ {print $2}'
    done
}

mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{for (i = $1; i <= $NF; i++) print i}')
((${#cores[@]} > 1)) || exit 77
two=${cores[0]},${cores[1]}
# A node that starts later sees the claim of the other node, unless the claim takes too long on a busy machine.
for attempt in 1 2 3; do
    start_up --cpus "$two" --threads 2
    "$bin/forepack" status --server "$server" --json >"$work/status"
    saw=$(jq '[.nodes[] | select(.cores_decided_by == "--cpus, other pools")] | length' "$work/status")
    [ "$saw" = 0 ] && [ $attempt -lt 3 ] || break
    stop_up
done
[ "$saw" != 0 ] || fail "no node saw the claim of the other one"
equal 2 "$(jq '[.nodes[] | select(.cores_decided_by | startswith("--cpus"))] | length' "$work/status")" "nodes that name --cpus"
# On a busy machine a pool swaps the cores of its threads, so the second threads may meet on one core.
equal 2 "$(node_masks | grep -cxE "${cores[0]}|${cores[1]}")" "bound threads: $(node_masks | sort | uniq -c)"
if [ "$(grep -c '@forepack-cores/' /proc/net/unix)" = 2 ] && [ "$saw" = 1 ]; then # else pools of other tests change the choice
    equal 2 "$(grep 'cores_placed' "$work/up.log" | tail -2 | grep -oE 'first=[0-9]+' | sort -u | wc -l)" "cores of the first threads"
fi
equal 2 "$(jq '[.nodes[] | select(.cores)] | length' "$work/status")" "nodes with cores"
grep -q "cores of the compute threads" <<<"$("$bin/forepack" status --server "$server")" || fail "no cores in the text of status"
stop_up

start_up --cpus "${cores[1]}"
equal "${cores[1]}" "$(node_masks | sort -u)" "masks with --cpus ${cores[1]}"
stop_up

for list in 0- x 1023; do
    code=0
    "$bin/forepack-worker" --model "$work" --cpus "$list" 2>"$work/error" || code=$?
    equal 2 "$code" "exit code of --cpus $list"
    equal 1 "$(wc -l <"$work/error")" "lines about --cpus $list"
    grep -q -- "--cpus $list: " "$work/error" || fail "wrong sentence: $(cat "$work/error")"
done
