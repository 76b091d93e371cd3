#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forepack up: options of the router, of workers and of speculators reach their programs, for any number of options.
# Nodes keep their costs next to their packed weights. A cluster with API keys and TLS becomes ready once all its nodes
# are attached.
. "$(dirname "$0")/lib.sh"

(umask 077 && "$bin/forepack" keys add --file "$work/keys" --id boss --tenant ops --operator >"$work/boss.key" 2>/dev/null)
printf '{%% for m in messages %%}<{{ m.content }}>{%% endfor %%}' >"$work/angles.jinja"
many=()
for i in $(seq 1 60); do many+=(--router-option "max-wait-ms=$((i + 100))"); done
"$source_dir/deploy/certificates.sh" "$work/certs" router=127.0.0.1 >/dev/null
trap '' HUP # as under nohup
mkdir "$work/packed"
start_up --threads 1 --packed-cache "$work/packed" --tls-cert "$work/certs/router.pem" --tls-key "$work/certs/router.key" --api-keys "$work/keys" --chat-template "$work/angles.jinja" "${many[@]}" \
    --prune-rule keep-at-least:0.5 --drafts-rule off --image-text '[image]' --router-option served-model-name=last --router-option metrics-open --worker-option max-model-len=128 \
    --speculator-option node-id=reader
kill -HUP "$up_pid" # its drain would end the tests below

grep -q "https://127.0.0.1:$http_port/v1" "$work/up.log" || fail "no address of HTTPS: $(cat "$work/up.log")"
export CURL_CA_BUNDLE=$work/certs/ca.pem
as_boss() { "$bin/forepack" "$1" --server "$server" --tls-ca "$work/certs/ca.pem" --api-key-file "$work/boss.key" "${@:2}"; }
equal 401 "$(curl -s -o /dev/null -w '%{http_code}' "https://127.0.0.1:$http_port/v1/models")" "models without a key"
equal 200 "$(curl -s -o /dev/null -w '%{http_code}' "https://127.0.0.1:$http_port/metrics")" "metrics, open"
ask() { curl -s -H @<(printf 'x-api-key: '; cat "$work/boss.key") "https://127.0.0.1:$http_port$1" "${@:2}"; }
equal last "$(ask /v1/models | jq -r '.data[0].id')" "the model's name"
equal "$(ask /tokenize -d '{"prompt": "<Hi>", "add_special_tokens": false}' | jq -c .tokens)" \
    "$(ask /tokenize -d '{"messages": [{"role": "user", "content": "Hi"}]}' | jq -c .tokens)" "tokens of the chat template"
equal 2 "$(as_boss status --json | jq '.nodes | length')" "the nodes of a cluster that is ready"
equal reader "$(as_boss status --json | jq -r '.nodes[] | select(.role == "speculator") | .node_id')" "the speculator's id"
if as_boss generate --prompt Hello --max-tokens 500 >/dev/null 2>"$work/error"; then fail "over the workers' context"; fi
grep -q "128" "$work/error" || fail "wrong reason: $(cat "$work/error")"
grep -q 'image-text="*\[image\]"* .*prune-rule=keep-at-least:0.5 drafts-rule=off' <<<"$(grep "router settings" "$work/up.log")" ||
    fail "a rule was dropped: $(grep "router settings" "$work/up.log")"
equal 2 "$(grep -c ' costs_measured ' "$work/up.log")" "nodes that measured their costs"
grep -q "max_wait_ms=160\|max-wait-ms=160" <<<"$(grep "settings" "$work/up.log")" || fail "an option was dropped"
stop_up

# The threads of nodes are a share of the cores that this process may use, not of all cores.
taskset -cp "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -n 1)" $$ >/dev/null
start_up --packed-cache "$work/packed"
grep -q 'speculator costs_found passes=[1-9]' "$work/up.log" || fail "the speculator measured its costs again"
grep -q 'worker costs_ignored .*configuration' "$work/up.log" || fail "the worker has another context than in its costs"
for pid in $(cat "/proc/$up_pid/task/$up_pid/children"); do tr '\0' ' ' <"/proc/$pid/cmdline" && echo; done >"$work/children"
equal 2 "$(grep -c -- '--threads 1 ' "$work/children")" "nodes with one thread on one core: $(cat "$work/children")"
stop_up
