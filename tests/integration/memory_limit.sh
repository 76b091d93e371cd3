#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A worker in a cgroup with a memory limit: the KV cache shrinks to fit, load does not end the worker, and a limit that
# is too low is refused with the numbers.
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
groups=()
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

start router "$bin/forepack-router" --model "$main_model" "${listen[@]}"
router=$last_pid
start worker "${node[@]}" "${worker[@]}" --max-num-seqs 1000
worker_pid=$last_pid
wait_until 60 "the worker is ready" ready
plan=$(grep memory_plan "$work/worker.log")
[[ $plan =~ kv_mib=([0-9]+)\ .*total_mib=300 ]] || fail "the plan does not know the limit: $plan"
[ "${BASH_REMATCH[1]}" -gt 20 ] && [ "${BASH_REMATCH[1]}" -lt 280 ] || fail "the size of the KV cache: $plan"
"$bin/forepack" bench serve --server "$server" --prompt-tokens 1000 --max-tokens 16 --concurrency 24 --requests 48 --prefill off >"$work/bench" ||
    fail "the load: $(cat "$work/bench")"
kill -0 "$worker_pid" || fail "the worker was killed under load"
peak=$(cat "$folder/forepack-test-$$-node/memory.max_usage_in_bytes" "$folder/forepack-test-$$-node/memory.peak" 2>/dev/null || true)
echo "peak of the worker: $((${peak:-0} >> 20)) MiB of 300"
kill -TERM "$worker_pid"
wait "$worker_pid" || fail "the worker ended with $?"
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"
echo "memory_limit: all passed"
