#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The use of tokens_per_day survives a router that ends and one that is killed, if it has --state-dir. A damaged file and a
# folder in use are one sentence. The metrics count requests and tokens by tenant.
. "$(dirname "$0")/lib.sh"

keys=$work/keys state=$work/state
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" "${@:2}" >"$work/$1.key" 2>/dev/null); }
key daily --tenant acme --tokens-per-day 100
key boss --tenant ops --operator
choose_ports
as() { "$bin/forepack" "$2" --server "$server" --api-key-file "$work/$1.key" "${@:3}" 2>"$work/error"; }
status_json() { as boss status --json; }
router() {
    start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 60000 --api-keys "$keys" "$@"
    router=$last_pid
    wait_until 60 "the cluster is ready" ready
}
ask() { as daily generate --prompt "Hi" --max-tokens "$1" --ignore-eos --json; }
used_up() { ! ask 1 >/dev/null && grep -q "100 tokens per day, which are used up" "$work/error"; }
refused() { # refused WORDS FLAGS...: the router does not start
    local code=0
    "$bin/forepack-router" --model "$main_model" "${listen[@]}" "${@:2}" >"$work/out" 2>&1 || code=$?
    equal 2 "$code" "exit code of a router with ${*:2}"
    grep -qF -- "$1" "$work/out" || fail "no '$1' in: $(cat "$work/out")"
}
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server"

router --state-dir "$state"
ask 60 >/dev/null
is_saved() { grep -q "^daily acme 6[0-9]$" "$state/quotas"; }
wait_until 20 "the use is saved" is_saved
kill -KILL "$router" # what was saved is kept
wait "$router" || true
router --state-dir "$state"
grep -q "quotas_read file=.*/quotas.* keys=1" "$work/router.log" || fail "the file was not read"
as daily generate --prompt "Hi" --max-tokens 200 --ignore-eos >/dev/null || fail "the rest of the quota was refused: $(cat "$work/error")"
used_up || fail "a request beyond the quota: $(cat "$work/error")"
refused "--state-dir: $state: another router uses it" --api-keys "$keys" --state-dir "$state" --port 0 --http-port 0 --node-listen 127.0.0.1:0
"$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys" --state-dir "$state" --check-config >/dev/null ||
    fail "--check-config is refused while a router uses the folder"
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"
router --state-dir "$state"
used_up || fail "the restart reset the quota: $(cat "$work/error")"
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"

# The tenant's usage since the start.
router
ask 5 >/dev/null || fail "a router without --state-dir starts anew: $(cat "$work/error")"
curl -sf -H "Authorization: Bearer $(cat "$work/boss.key")" "http://127.0.0.1:$http_port/metrics" >"$work/metrics"
grep -qx 'forepack:generation_tokens_total{tenant="acme"} 5' "$work/metrics" || fail "$(grep generation_tokens "$work/metrics")"
grep -qx 'forepack:request_success_total{finished_reason="length",tenant="acme"} 1' "$work/metrics" || fail "no request of the tenant"
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"

# Errors of the start.
sed -i 's/^daily acme ./daily acme 1/' "$state/quotas"
refused "--state-dir: $state/quotas is damaged (move it away to start with unused quotas): its last line is not the hash" \
    --api-keys "$keys" --state-dir "$state"
refused "--state-dir: $state/quotas is damaged" --api-keys "$keys" --state-dir "$state" --check-config
refused "--state-dir: keeps the use of API keys: give --api-keys too" --state-dir "$state"
refused "--state-dir: $keys: " --api-keys "$keys" --state-dir "$keys"
echo "quotas: all passed"
