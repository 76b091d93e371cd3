#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Traces: a collector that is not part of this project (OpenTelemetry's own messages, in Python) gets the spans of requests over
# HTTP and gRPC, and of failed, cancelled and replayed requests, also after it was down, with TLS, and when the router stops.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/venv.sh"

tests=$source_dir/tests/integration
spans=$work/spans.jsonl
: >"$spans"
choose_ports
collector=127.0.0.1:$(free_port)
http=http://127.0.0.1:$http_port
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 60000 --prefill off \
    --score-timeout-ms 600000 --worker-grace-ms 600000 --otlp-endpoint "$collector" \
    --otlp-service-name forepack-test --otlp-batch-ms 10
start_worker() { start "worker$1" "$bin/forepack-worker" --model "$main_model" --router "$node_server" --node-id "worker-$1" --threads 1 --log-level debug; }
start_worker 0
worker=$last_pid
start spec0 "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --node-id spec-0 --threads 1 --log-level debug
wait_until 60 "the cluster is ready" ready
wait_until 60 "the speculator is there" nodes speculator 1

# Requests are served while there is no collector. Once it is there, it gets their spans.
generate --prompt early --max-tokens 1 >/dev/null
start collector "$python" "$tests/collector.py" "$collector" "$spans"
got_spans() { [ -s "$spans" ]; }
wait_until 60 "the collector gets what waited" got_spans
check() { "$python" "$tests/tracing_client.py" "$http" "$server" "$spans" "$work/router.log" "$1"; }
check requests
pruned=$(jq -r 'select(.attributes["gen_ai.response.id"] == "pruned") | .trace' "$spans")
grep -q "score_received .* trace=$pruned" "$work/spec0.log" || fail "the speculator does not log the trace"
grep -q "sequence_received .* trace=$pruned" "$work/worker0.log" || fail "the worker does not log the trace"

# A worker group that is stopped and killed: another one takes its request over.
kill -STOP "$worker"
start victim curl -sS --fail "$http/v1/completions" -d '{"prompt":"Hi","max_tokens":3,"ignore_eos":true}' \
    -H "traceparent: 00-000000000000000000000000000000ef-00000000000000ff-01"
victim=$last_pid
wait_until 30 "the request is on the worker group" status_is '.queue.running == 1'
kill -KILL "$worker"
start_worker 1
wait "$victim" || fail "the replayed request failed"
check replay

# TLS and headers; a share of 0 traces only requests whose parent asks for it; waiting spans are sent when the router stops.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=collector \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
(umask 077 && echo "x-key: a secret" >"$work/headers")
collector=127.0.0.1:$(free_port)
tls_spans=$work/tls-spans.jsonl
start tls-collector "$python" "$tests/collector.py" "$collector" "$tls_spans" "$work/cert.pem" "$work/key.pem"
listens() { (exec 3<>"/dev/tcp/127.0.0.1/${collector#*:}") 2>/dev/null; }
wait_until 30 "the collector listens" listens
choose_ports
start router2 "$bin/forepack-router" --model "$main_model" "${listen[@]}" --otlp-endpoint "$collector" --otlp-sample 0 \
    --otlp-tls-ca "$work/cert.pem" --otlp-headers-file "$work/headers"
router2=$last_pid
wait_until 30 "the second router answers" status_json
trace=4bf92f3577b34da6a3ce929d0e0e4736
ask() { curl -sS -o /dev/null "http://127.0.0.1:$http_port/v1/completions" -d '{"prompt":"Hi","max_tokens":1}' "$@"; }
ask
ask -H "traceparent: 00-$trace-00f067aa0ba902b7-01" # no worker group is there: an error
kill -TERM "$router2"
wait "$router2" || fail "the router did not stop"
equal "$trace a secret unavailable" \
    "$(jq -r 'select(.kind == 2) | "\(.trace) \(.key) \(.attributes["error.type"])"' "$tls_spans")" "spans over TLS"
if grep -q "a secret" "$work/router2.log"; then fail "a header is in the log"; fi

# Headers are not sent in plain text to other machines.
if "$bin/forepack-router" --model "$main_model" --otlp-endpoint 192.0.2.1:4317 --otlp-headers-file "$work/headers" \
    2>"$work/refused"; then fail "headers in plain text were not refused"; fi
grep -q -- '--otlp-tls-ca' "$work/refused" || fail "wrong reason: $(cat "$work/refused")"
