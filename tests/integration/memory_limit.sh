#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Router and worker in cgroups with a memory limit: the KV cache and the router's budgets shrink to fit, load does not end
# them, and a limit that is too low is refused with the numbers.
. "$(dirname "$0")/lib.sh"

v1=/sys/fs/cgroup/memory v2=/sys/fs/cgroup
if [ "$(id -u)" != 0 ]; then echo "memory_limit: needs root" && exit 77; fi
if [ -e $v1/memory.limit_in_bytes ]; then
    folder=$v1 file=memory.limit_in_bytes
elif grep -q memory $v2/cgroup.subtree_control 2>/dev/null; then
    folder=$v2 file=memory.max
else
    echo "memory_limit: needs a memory cgroup" && exit 77
fi
groups=() clients=()
limit() { # limit NAME MIB: a cgroup; "${NAME[@]}" are the words before a command that runs there
    mkdir "$folder/forepack-test-$$-$1" || { echo "memory_limit: cgroups are read-only" && exit 77; }
    groups+=("$folder/forepack-test-$$-$1")
    echo $(($2 << 20)) >"${groups[-1]}/$file"
    declare -ga "$1"'=(bash -c "echo \$\$ >\"\$0/cgroup.procs\" && exec \"\$@\"" "${groups[-1]}")'
}
remove_groups() {
    for group in "${groups[@]}"; do rmdir "$group" || true; done
}
trap '(clean_up) || code=1; wait; remove_groups; exit ${code:-0}' EXIT

refused() { # refused WORDS COMMAND...
    local code=0
    "${@:2}" >/dev/null 2>"$work/error" || code=$?
    [ $code = 1 ] || [ $code = 2 ] || fail "exit code $code, not 1 or 2: $(cat "$work/error")"
    grep -qE -- "$1" "$work/error" || fail "wrong reason: $(cat "$work/error")"
}

choose_ports
limit small 64
limit node 300
worker=("$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --backend cpu)
refused "the cgroup allows this rank 64 MiB, but it needs [0-9]+ MiB" "${small[@]}" "${worker[@]}"
refused "the cgroup allows this rank 300 MiB, but it needs [0-9]+ MiB: .* for 200000 KV blocks" "${node[@]}" "${worker[@]}" --kv-blocks 200000

limit router 300
router_flags=(--model "$main_model" "${listen[@]}")
refused "the cgroup allows the router 64 MiB, but it needs [0-9]+ MiB" "${small[@]}" "$bin/forepack-router" "${router_flags[@]}"
refused "the cgroup allows the router 300 MiB, but it needs" "${router[@]}" "$bin/forepack-router" "${router_flags[@]}" --max-answers-mb 300
start router "${router[@]}" "$bin/forepack-router" "${router_flags[@]}"
router_pid=$last_pid
start worker "${node[@]}" "${worker[@]}" --max-num-seqs 1000
worker_pid=$last_pid
wait_until 60 "the worker is ready" ready
plan=$(grep memory_plan "$work/worker.log")
[[ $plan =~ kv_mib=([0-9]+)\ .*total_mib=300 ]] || fail "the plan does not know the limit: $plan"
[ "${BASH_REMATCH[1]}" -gt 20 ] && [ "${BASH_REMATCH[1]}" -lt 280 ] || fail "the size of the KV cache: $plan"
"$bin/forepack" bench serve --server "$server" --prompt-tokens 1000 --max-tokens 16 --concurrency 24 --requests 48 --prefill off >"$work/bench" ||
    fail "the load: $(cat "$work/bench")"
for budget in max-peers-mb max-answers-mb tokenise-queue-mb; do
    grep -q "budget_lowered option=$budget .* limit_mib=300" "$work/router.log" || fail "$budget was not lowered"
done
head -c 12000000 /dev/zero | tr '\0' a >"$work/long" # a message near the limit
for i in 1 2 3 4 5 6; do
    curl -s -o /dev/null "http://127.0.0.1:$http_port/v1/completions" -d @<(printf '{"model":"main","prompt":"'; cat "$work/long"; printf '"}') &
    clients+=($!)
done
wait "${clients[@]}" || true # they may be refused
kill -0 "$router_pid" || fail "the router was killed by long messages"
kill -0 "$worker_pid" || fail "the worker was killed under load"
peak=$(cat "$folder/forepack-test-$$-node/memory.max_usage_in_bytes" "$folder/forepack-test-$$-node/memory.peak" 2>/dev/null || true)
echo "peak of the worker: $((${peak:-0} >> 20)) MiB of 300"
kill -TERM "$worker_pid"
wait "$worker_pid" || fail "the worker ended with $?"
kill -TERM "$router_pid"
wait "$router_pid" || fail "the router ended with $?"
echo "memory_limit: all passed"
