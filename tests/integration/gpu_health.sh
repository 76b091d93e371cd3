#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GPU health: groups whose GPUs are the CPU (tests/fake_gpus.c) with a made-up NVML (tests/fake_nvml.c). Metrics of
# both ranks. A group leaves after its answer, with exit code 1 and a sentence, because of an Xid or because the GPU of
# another rank throttles. A group stays with --gpu-health report, without NVML, and with an NVML that hangs.
. "$(dirname "$0")/lib.sh"

build=$(dirname "$bin")
mkdir "$work/gpus"
gpu() { # gpu N LINES: the state of the GPU of rank N
    printf '%b' "$2" >"$work/gpus/new"
    mv "$work/gpus/new" "$work/gpus/0000:0$(($1 + 1)):00.0"
}
healthy='temperature 50\ntotal 1000\nused 400\nthrottle 0\ncorrected 3\nuncorrected 0\n'
worker() { # worker NAME NVML [OPTION...]: a worker group; $launch starts its ranks
    # shellcheck disable=SC2086
    start "$1" env LD_LIBRARY_PATH="$build/nvml/$2" FAKE_NVML="$work/gpus" $launch "$bin/fake_gpu_worker" --model "$main_model" \
        --router "$node_server" --node-id "$1" --backend cuda --dtype bf16 --packed-cache off "${@:3}"
    worker=$last_pid
}
sample() { # sample METRIC NODE LABELS: its value
    curl -s "http://127.0.0.1:$http_port/metrics" | awk -v series="forepack:$1{pool=\"worker\",node=\"$2\",$3}" '$1 == series {print $2}'
}
sample_is() { [ "$(sample "$1" "$2" "$3")" = "$4" ]; }
state_is() { status_is "[.nodes[] | select(.node_id == \"$1\") | .state] == [\"$2\"]"; }
ends_with() { # ends_with CODE WHAT: the last worker
    local code=0
    wait "$worker" || code=$?
    equal "$1" "$code" "exit code of $2"
}
one=(--prompt "Count to a thousand" --max-tokens 300 --ignore-eos)

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 1000 --worker-grace-ms 600000
launch="mpirun --oversubscribe --bind-to none -n 2"

# The values of both ranks.
gpu 0 "$healthy"
gpu 1 "${healthy/temperature 50/temperature 63}xid 31\n"
worker a fake
wait_until 60 "the group is ready" ready
wait_until 20 "the temperature of rank 1" sample_is gpu_temperature_celsius a 'rank="1"' 63
wait_until 20 "the temperature of rank 0" sample_is gpu_temperature_celsius a 'rank="0"' 50
equal 400 "$(sample gpu_memory_used_bytes a 'rank="1"')" "used memory"
equal 1000 "$(sample gpu_memory_total_bytes a 'rank="0"')" "memory"
equal 3 "$(sample gpu_ecc_corrected_total a 'rank="1"')" "corrected memory errors"
equal 0 "$(sample gpu_ecc_uncorrected_total a 'rank="1"')" "uncorrected memory errors"
equal 1 "$(sample gpu_xid_errors_total a 'rank="1"')" "Xids of rank 1"
equal 31 "$(sample gpu_last_xid a 'rank="1"')" "the last Xid"
equal 0 "$(sample gpu_throttled_seconds_total a 'rank="1",reason="hw_thermal"')" "throttling"
equal 1 "$(sample gpu_healthy a 'rank="1"')" "health after an Xid that is not fatal"
generate "${one[@]}" >"$work/expected"

# Rank 1 does not run while the leader's GPU fails, so the answer is not over when the group drains.
for rank in $(pgrep -P "$worker" -x fake_gpu_worker); do
    if grep -qz '^OMPI_COMM_WORLD_RANK=1$' "/proc/$rank/environ"; then break; fi
done
kill -STOP "$rank"
generate "${one[@]}" >"$work/answer" &
client=$!
wait_until 60 "the request is on the group" status_is '[.nodes[].running] == [1]'
gpu 0 "${healthy}xid 79\n"
wait_until 20 "the group drains" state_is a draining
kill -CONT "$rank"
wait "$client" || fail "the answer of the group that drained"
equal "$(jq -cS '[.token_ids, .usage.replays]' "$work/expected")" "$(jq -cS '[.token_ids, .usage.replays]' "$work/answer")" "tokens"
ends_with 1 "a group whose GPU fell off the bus"
reason="rank 0 (host [^ ]*, pid [0-9]*), GPU 0000:01:00.0: Xid 79: the GPU has fallen off the bus: restart the host"
grep -q "^forepack-worker: the node has left because of a GPU: $reason$" "$work/a.log" || fail "no sentence with the reason"
grep -q "drain_started by=gpu reason=\"$reason\"" "$work/a.log" || fail "the log of the group has no reason"
grep -q "node_draining node=a .*requests=1 reason=\"$reason\"" "$work/router.log" || fail "the log of the router has no reason"
grep -qx "forepack:gpu_drains_total 1" <<<"$(curl -s "http://127.0.0.1:$http_port/metrics")" || fail "the drain is not counted"
equal 1 "$(sample gpu_xid_errors_total a 'rank="0"')" "Xids of a node that is gone"
equal "" "$(sample gpu_temperature_celsius a 'rank="0"')" "the temperature of a node that is gone"

# Throttling of rank 1.
gpu 0 "$healthy"
gpu 1 "${healthy/throttle 0/throttle 72}"
worker b fake --gpu-throttle-limit-s 2
ends_with 1 "a group with a GPU that throttles"
grep -q "left because of a GPU: rank 1 (host .*), GPU 0000:02:00.0: the hardware has throttled the GPU for 2 s more than not" "$work/b.log" ||
    fail "no sentence about throttling"
[ "$(sample gpu_throttled_seconds_total b 'rank="1",reason="hw_thermal"' | awk '{print ($1 >= 2)}')" = 1 ] || fail "no time of throttling"

# Groups of one rank that stay: one that only reports its lost GPU, one without NVML, and one whose NVML hangs.
launch=
gpu 0 'error 15\n'
worker c fake --gpu-health report
wait_until 60 "the lost GPU is reported" sample_is gpu_healthy c 'rank="0"' 0
grep -q "gpu_unhealthy bus_id=0000:01:00.0 reason=\"the GPU is lost" "$work/c.log" || fail "no line about the lost GPU"
generate --prompt Hello --max-tokens 3 >/dev/null
"$bin/forepack" drain --server "$server" c >/dev/null
ends_with 0 "a node that only reports"

worker d missing
wait_until 60 "the node is ready" state_is d ready
wait_until 20 "the missing library is one line" grep -q "gpu_health_unavailable bus_id=0000:01:00.0 reason=.*libnvidia-ml.so.1" "$work/d.log"
generate --prompt Hello --max-tokens 3 >/dev/null
"$bin/forepack" drain --server "$server" d >/dev/null
ends_with 0 "a node without NVML"
equal "" "$(sample gpu_healthy d 'rank="0"')$(sample gpu_xid_errors_total d 'rank="0"')" "metrics without NVML"

gpu 0 "$healthy"
worker e fake
wait_until 60 "the temperature is read" sample_is gpu_temperature_celsius e 'rank="0"' 50
gpu 0 'hang 1\n'
wait_until 30 "NVML counts as silent" grep -q "gpu_health_silent bus_id=0000:01:00.0" "$work/e.log"
equal "" "$(sample gpu_temperature_celsius e 'rank="0"')" "the temperature while NVML hangs"
generate --prompt Hello --max-tokens 3 >/dev/null
"$bin/forepack" drain --server "$server" e >/dev/null
ends_with 0 "a node whose NVML hangs"

worker f fake --gpu-fatal-xids 48,bus
ends_with 2 "a wrong list of Xids"
grep -q "gpu-fatal-xids: '48,bus': must be none, or up to 32 numbers" "$work/f.log" || fail "no sentence about the list"
echo "gpu_health: all passed"
