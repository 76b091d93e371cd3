#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each alert of deploy/monitoring/alerts.yaml fires after its cause and not before. A real Prometheus reads the metrics of
# real processes; only the waiting times of the rules (`for`) are left out. Each runbook_url leads to a paragraph.
. "$(dirname "$0")/lib.sh"

if ! command -v prometheus >/dev/null || ! command -v openssl >/dev/null; then
    echo "skipped: prometheus or openssl is not installed (deploy/packages.sh --monitoring)"
    exit 77
fi

rules=$source_dir/deploy/monitoring/alerts.yaml
promtool check rules "$rules" >/dev/null || fail "the rules are malformed"
for alert in $(sed -n 's/.*- alert: //p' "$rules"); do
    grep -q "runbook_url: .*/docs/troubleshooting.md#${alert,,}\"" "$rules" || fail "$alert has no runbook_url"
    grep -q "^### $alert\$" "$source_dir/docs/troubleshooting.md" || fail "docs/troubleshooting.md has no paragraph on $alert"
done

choose_ports
prometheus=127.0.0.1:$(free_port)
sed -E 's/^( *for:) .*/\1 0s/' "$rules" >"$work/alerts.yaml"
cat >"$work/prometheus.yaml" <<END
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
scrape_configs: [{job_name: forepack, static_configs: [{targets: ["127.0.0.1:$http_port"]}]}]
rule_files: [alerts.yaml]
END
start prometheus prometheus --config.file="$work/prometheus.yaml" --storage.tsdb.path="$work/tsdb" \
    --web.listen-address="$prometheus" --log.level=warn
declare -A fired
is_firing() {
    curl -sf "http://$prometheus/api/v1/alerts" |
        jq -e --arg name "Forepack$1" 'any(.data.alerts[]; .labels.alertname == $name and .state == "firing")'
}
quiet() { # quiet ALERT...: they do not fire before their cause
    for alert; do if is_firing "$alert" >/dev/null; then fail "$alert fires before its cause"; fi; done
}
fires() { # fires ALERT...
    for alert; do
        wait_until 40 "$alert fires" is_firing "$alert"
        fired[Forepack$alert]=1
    done
}
ends() { if is_firing "$1" >/dev/null; then return 1; fi; }
metric() { curl -s "http://127.0.0.1:$http_port/metrics" | awk -v name="forepack:$1" '$1 == name {print $2}'; }
metric_is() { [ "$(metric "$1")" = "$2" ]; }
stop() { kill -TERM "$1"; kill -CONT "$1"; wait "$1" || true; }
node() { # node NAME PROGRAM MODEL FLAGS...; its pid is in $NAME
    start "$1" "$bin/forepack-$2" --model "$3" --router "$node_server" --node-id "$1" --threads 1 "${@:4}"
    declare -g "$1=$last_pid"
}
router() { # router FLAGS...; with a heartbeat so long that a stopped process is not taken for a lost one
    start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 60000 "$@"
    router=$last_pid
}
state_is() { status_is "[.nodes[] | select(.node_id == \"$1\") | .state] == [\"$2\"]"; }
one=(--prompt "Count to a thousand" --max-tokens 300 --ignore-eos)
long=$(printf 'word %.0s' {1..300}) # 900 tokens

wait_until 30 "Prometheus answers" curl -sf "http://$prometheus/-/ready"
fires RouterDown

# A group stops with answers on it: the queue fills, requests are refused, answers are slow.
quiet NotReady NoWorkerGroup
router --stall-timeout-ms 0 --max-queue-requests 40 --max-queue-tokens 100000 --worker-grace-ms 100 --tenant-queue-share 100
fires NotReady NoWorkerGroup
node a worker "$main_model" --max-num-seqs 1
wait_until 60 "the node is ready" ready
for alert in RouterDown NotReady NoWorkerGroup; do wait_until 30 "$alert ends" ends $alert; done
for i in 1 2 3; do generate --prompt "$i $long" --max-tokens 1 >/dev/null; done
quiet QueueFills QueueTokensFill QueueSlow FirstTokenSlow TokensSlow RequestsRefused
clients=() clients_refused=()
generate "${one[@]}" >/dev/null &
clients+=($!)
wait_until 60 "the request is on the group" status_is '[.nodes[].running] == [1]'
kill -STOP "$a"
stopped=$SECONDS
generate --prompt "$long" --max-tokens 1 >/dev/null &
clients+=($!)
for i in $(seq 30); do jq -nc --arg prompt "$i $long $long $long" '{id: $prompt[:9], $prompt, max_tokens: 1}'; done >"$work/crowd.jsonl"
"$bin/forepack" batch --server "$server" --input "$work/crowd.jsonl" --output "$work/crowd.out" 2>/dev/null &
crowd=$!
fires QueueFills QueueTokensFill QueueSlow
for i in 1 2 3 4 5; do # more tokens than fit
    generate --prompt "$long $long $long $i" --max-tokens 1 >/dev/null 2>&1 &
    clients_refused+=($!)
done
fires RequestsRefused
is_over() { [ $((SECONDS - stopped)) -ge 7 ]; } # the limit of FirstTokenSlow is 5 s
wait_until 20 "the answers are late" is_over
kill "$crowd" "${clients_refused[@]}" 2>/dev/null || true
kill -CONT "$a"
wait "${clients[@]}" || fail "an answer of the group that stopped"
fires FirstTokenSlow
generate "${one[@]}" --max-tokens 4000 >/dev/null 2>&1 &
client=$!
stutter() { # over one gap in a hundred tokens is long
    kill -STOP "$a"
    sleep 0.4
    kill -CONT "$a"
    is_firing TokensSlow
}
wait_until 20 "TokensSlow fires" stutter
fired[ForepackTokensSlow]=1
kill "$client" 2>/dev/null || true
wait "$client" || true

# The group is killed, and no other group comes in time.
quiet RequestsFail Replays
generate "${one[@]}" --max-tokens 900 >/dev/null 2>&1 &
client=$!
wait_until 60 "the request is on the group" status_is '[.nodes[].running] == [1]'
kill -KILL "$a"
if wait "$client"; then fail "the request of the lost group was answered"; fi
fires RequestsFail Replays
stop "$router"

# A certificate that expires; a missing worker group.
certificate() { bash "$source_dir/deploy/certificates.sh" --days "$1" "$work/tls" router=127.0.0.1 node >/dev/null; }
certificate 20
tls=(--node-tls-ca "$work/tls/ca.pem" --node-tls-cert "$work/tls/node.pem" --node-tls-key "$work/tls/node.key")
printf 'expect-workers = 2\n' >"$work/router.conf"
quiet NodesMissing CertificateExpires
router --config "$work/router.conf" --stall-timeout-ms 2000 --eject-ms 600000 --prefill on --keep-rate 0.3 \
    --score-timeout-ms 600000 --worker-grace-ms 600000 --node-tls-ca "$work/tls/ca.pem" \
    --node-tls-cert "$work/tls/router.pem" --node-tls-key "$work/tls/router.key"
fires NodesMissing CertificateExpires
quiet CertificateExpiresSoon
certificate 5
kill -HUP "$router"
fires CertificateExpiresSoon
certificate 365
for alert in CertificateExpires CertificateExpiresSoon; do wait_until 30 "$alert ends" ends $alert; done
node a worker "$main_model" "${tls[@]}"
node s speculator "$spec_model" "${tls[@]}"
wait_until 60 "the nodes are ready" status_is '.ready and (.nodes | length == 2)'
is_firing NodesMissing >/dev/null || fail "NodesMissing ended with one of two worker groups"
printf 'expect-workers = 1\n' >"$work/router.conf"
kill -HUP "$router"
wait_until 30 "NodesMissing ends after a change of the configuration" ends NodesMissing
generate "${one[@]}" >/dev/null

# The speculator leaves. No request needs it until one comes.
quiet SpeculatorsGone SpeculationDegraded
kill -TERM "$s"
fires SpeculatorsGone
quiet SpeculationDegraded
generate --prompt "$long" --max-tokens 1 >/dev/null
fires SpeculationDegraded

# A speculator hangs, then a worker group.
node s speculator "$spec_model" "${tls[@]}"
node b worker "$main_model" "${tls[@]}"
wait_until 60 "the nodes are ready" status_is '[.nodes[] | select(.state == "ready")] | length == 3'
generate --prompt "$long" --max-tokens 1 >/dev/null # an idle node is not taken for a hung one
quiet NodeHung NodeEjected
kill -STOP "$s"
generate --prompt "A $long" --max-tokens 1 >/dev/null &
client=$!
fires NodeHung NodeEjected
kill -CONT "$s"
wait "$client" || fail "the prompt of the speculator that hung"
stop "$b"
generate "${one[@]}" --prefill off --max-tokens 1500 >"$work/answer" &
client=$!
wait_until 60 "the request is on the group" status_is '[.nodes[] | select(.node_id == "a") | .running] == [1]'
kill -STOP "$a"
node b worker "$main_model" "${tls[@]}"
wait "$client" || fail "the answer of the group that hung"
for pid in "$a" "$b" "$s" "$router"; do stop "$pid"; done

# A log that nothing reads, a small KV cache, and more connections than an address may have.
open_full_pipe
quiet KvCacheFull HttpConnectionsRefused LogLinesDropped
start router bash -c 'exec "$@" 2>&7' bash "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 1000 \
    --stall-timeout-ms 0 --worker-grace-ms 100 --max-connections-per-address 2 --log-level debug
router=$last_pid
node a worker "$main_model" --kv-blocks 64 --max-model-len 1024 --max-num-seqs 1
wait_until 60 "the node is ready" ready
chatter() { # fills the buffer of the log
    jq -nc 'range(1000) | {id: "\(.)", prompt: "Hi", max_tokens: 1}' >"$work/chatter.jsonl"
    rm -f "$work/chatter.out"
    "$bin/forepack" batch --server "$server" --input "$work/chatter.jsonl" --output "$work/chatter.out" 2>/dev/null
    is_firing LogLinesDropped
}
wait_until 40 "LogLinesDropped fires" chatter
fired[ForepackLogLinesDropped]=1
# Each prompt needs nearly all blocks, and heartbeats report the blocks in use.
jq -nc --arg prompt "$long $(printf 'word %.0s' {1..20})" 'range(500) | {id: "k\(.)", prompt: "\(.) \($prompt)", max_tokens: 50, ignore_eos: true}' \
    >"$work/blocks.jsonl"
"$bin/forepack" batch --server "$server" --input "$work/blocks.jsonl" --output "$work/blocks.out" 2>/dev/null &
blocks=$!
fires KvCacheFull
kill "$blocks"
wait "$blocks" || true
python3 -c '
import socket, sys, time
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), source_address=("127.0.0.9", 0)) for _ in range(4)]
time.sleep(300)' "$http_port" &
crowd=$!
fires HttpConnectionsRefused
kill "$crowd"

stop "$a"
stop "$router"

# If almost every prompt token is pruned, the answer differs from that to the whole prompt. A shadow runs after the answer.
quiet PruningFellBack PrunedAnswersDiffer
router --shadow 1 --shadow-per-s 1000 --shadow-fallback answer:0.5 --speculate-min-tokens 1 --score-timeout-ms 600000
node a worker "$main_model"
node s speculator "$spec_model"
wait_until 60 "the nodes are ready" status_is '.ready and (.nodes | length == 2)'
ask_all() { # at most 64 answers wait to be compared
    rm -f "$work/pruned.out"
    "$bin/forepack" batch --server "$server" --input "$work/pruned.jsonl" --output "$work/pruned.out" 2>/dev/null
    wait_until 60 "the answers are compared" metric_is shadow_waiting 0
    is_firing PrunedAnswersDiffer
}
# The blank makes the answer begin with the number that the question is about.
jq -c '{id, prompt: "\(.prompt) ", max_tokens: 4, prefill: "required", keep_rate: 0.02}' "$prompts" >"$work/pruned.jsonl"
wait_until 60 "PrunedAnswersDiffer fires" ask_all
fired[ForepackPrunedAnswersDiffer]=1
fires PruningFellBack
for pid in "$a" "$s" "$router"; do stop "$pid"; done

# GPUs with a made-up NVML, if the programs for them were built.
if [ -x "$bin/fake_gpu_worker" ]; then
    quiet GpuMemoryErrors GpuThrottled GpuInTrouble
    mkdir "$work/gpus"
    gpu() { # gpu LINES: the state of the GPU
        printf '%b' "$1" >"$work/gpus/new"
        mv "$work/gpus/new" "$work/gpus/0000:01:00.0"
    }
    gpu 'temperature 50\nthrottle 0\ncorrected 0\nuncorrected 0\n'
    router
    start g env LD_LIBRARY_PATH="$(dirname "$bin")/nvml/fake" FAKE_NVML="$work/gpus" "$bin/fake_gpu_worker" --model "$main_model" \
        --router "$node_server" --node-id g --backend cuda --dtype bf16 --packed-cache off --gpu-health report
    g=$last_pid
    wait_until 60 "the node is ready" ready
    gpu_is_read() { [ "$(metric 'gpu_ecc_uncorrected_total{pool="worker",node="g",rank="0"}')" = 0 ]; }
    wait_until 20 "the GPU is read" gpu_is_read
    quiet GpuMemoryErrors GpuThrottled GpuInTrouble
    gpu 'temperature 90\nthrottle 72\ncorrected 0\nuncorrected 1\n'
    fires GpuMemoryErrors GpuThrottled
    quiet GpuInTrouble
    gpu 'error 15\n'
    fires GpuInTrouble
    stop "$g"
    stop "$router"
else
    echo "skipped: the alerts of GPUs, because this build has no fake GPUs"
    for alert in GpuMemoryErrors GpuThrottled GpuInTrouble; do fired[Forepack$alert]=1; done
fi

echo "alerts: ${#fired[@]} of $(grep -c -- '- alert:' "$rules") fired"
for alert in $(sed -n 's/.*- alert: //p' "$rules"); do [ -n "${fired[$alert]-}" ] || fail "$alert was not caused"; done
