#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SIGHUP: router and nodes read their changed files and log each change with the old and the new value, without secrets;
# a file with an error is logged, and the last contents stay in use. A request that runs meanwhile notices nothing.
. "$(dirname "$0")/lib.sh"

certs=$work/certs keys=$work/keys
certificates() { "$source_dir/deploy/certificates.sh" --days "$1" "$certs" router=127.0.0.1; }
certificates 40
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" "${@:2}" >"$work/$1.key" 2>/dev/null); }
key boss --tenant ops --operator
key acme --tenant acme --requests-per-minute 600
key gone --tenant gone
token() { (umask 077 && echo "$1" >"$work/token"); }
token the-first-secret-of-the-nodes

choose_ports
cat >"$work/router.conf" <<END
model = $main_model
api-keys = $keys
cluster-token-file = $work/token
tls-cert = $certs/router.pem
tls-key = $certs/router.key
max-queue-requests = 1000
drain-ms = 120000
END
cp "$work/router.conf" "$work/first.conf"
echo "log-level = info" >"$work/worker.conf"
start router "$bin/forepack-router" --config "$work/router.conf" "${listen[@]}" --max-wait-ms 400
router=$last_pid
start worker "$bin/forepack-worker" --config "$work/worker.conf" --model "$main_model" --router "$node_server" --node-id w --threads 1 \
    --cluster-token-file "$work/token"
worker=$last_pid
as() { "$bin/forepack" "$2" --server "$server" --tls-ca "$certs/ca.pem" --api-key-file "$work/$1.key" "${@:3}"; }
status_json() { as boss status --json; }
ask() { as acme generate --json --ignore-eos --prompt "$1" --max-tokens "$2"; }
wait_until 60 "the cluster is ready" ready

# The fingerprint and last day of the certificate that the router serves.
served() {
    openssl s_client -connect "$server" -CAfile "$certs/ca.pem" -alpn h2 </dev/null 2>/dev/null | openssl x509 -noout -serial
}
lines() { grep -c -- "$1" "$work/$2.log" || true; }
# reload NAME: sends SIGHUP and waits until the program has read its files; new lines are in `lines`.
reload() {
    local before seen
    before=$(lines reload_done "$1")
    seen=$(wc -l <"$work/$1.log")
    kill -HUP "${!1}"
    is_done() { [ "$(lines reload_done "$1")" -gt "$before" ]; }
    wait_until 20 "the $1 has read its files" is_done "$1"
    tail -n +$((seen + 1)) "$work/$1.log" >"$work/lines"
}
said() { grep -q -- "$1" "$work/lines" || fail "not in the log: $1; but: $(cat "$work/lines")"; }
silent() { if grep -- "$1" "$work/lines"; then fail "in the log: $1"; fi; }

ask "Count to a thousand" 1500 >"$work/expected"
ask "Count to a thousand" 1500 >"$work/answer" &
client=$!

# Nothing has changed: nothing is read.
reload router
reload worker
reload router
silent "warn\|error\|changed\|loaded\|api_key\|refused"

# API keys: limits, tenant, a new and a deleted key, a new secret.
old=$(cat "$work/acme.key")
sed -i 's/requests_per_minute=600/requests_per_minute=700 priority=3/; /^gone /d' "$keys"
key late --tenant late
reload router
said 'info router api_key_changed key=acme old="acme requests_per_minute=600" new="acme priority=3 requests_per_minute=700" secret_replaced=false'
said 'info router api_key_removed key=gone old=gone new=""'
said 'info router api_key_added key=late old="" new=late'
said 'info router api_keys_changed .*added=1 removed=1 changed=1'
silent "certificate\|token_loaded\|option\|key=boss"
as late generate --prompt Hi --max-tokens 1 >/dev/null
as acme generate --prompt Hi --max-tokens 1 --priority 3 >/dev/null
if as gone status >/dev/null 2>&1; then fail "a deleted key is accepted"; fi
cp "$keys" "$work/good"
echo "acme broken" >>"$keys"
reload router
said 'error router api_keys_unusable .*line 4.*effect="the keys read before stay in use"'
as late generate --prompt Hi --max-tokens 1 >/dev/null
cp "$work/good" "$keys"
sed -i '/^acme /d' "$keys"
key acme --tenant acme
reload router
said 'api_key_changed key=acme .*secret_replaced=true'

# Certificates of both ports of clients.
first=$(served)
certificates 50
reload router
said "info router certificate_loaded cert=.*router.pem.* expires=$(date -u -d '+50 days' +%Y-%m-%d) fingerprint=.* old_expires=$(date -u -d '+40 days' +%Y-%m-%d) old_fingerprint="
equal 2 "$(grep -c certificate_loaded "$work/lines")" "ports with a new certificate"
second=$(served)
[ "$first" != "$second" ] || fail "the old certificate is served"
echo broken >"$certs/router.pem"
reload router
said 'error router certificate_refused reason=.*router.pem.*effect="the last certificate stays in use"'
equal "$second" "$(served)" "the certificate that is served while the file is broken"
certificates 50
reload router
said certificate_loaded

# The cluster token, at the router and at the node that is attached.
token the-second-secret-of-the-nodes
reload router
said 'info router cluster_token_loaded .*changed=true'
token short
reload router
said 'error router cluster_token_refused reason=.*must have at least 16.*effect="the last token stays in use"'
reload worker
said 'info worker file_changed file=.*token.*effect="it is used when the node attaches again"'
rm "$work/token"
reload worker
said 'error worker file_refused reason=.*token: No such file.*effect="the node stays attached, but could not attach again"'
token the-second-secret-of-the-nodes
reload worker
silent "error"

# Options in the --config file: some may change while the program runs, others not, flags never.
sed -i 's/drain-ms = 120000/drain-ms = 121000/; s/max-queue-requests = 1000/max-queue-requests = 5/' "$work/router.conf"
printf 'log-level = debug\nmax-wait-ms = 7\nbins-ahead = 3\n' >>"$work/router.conf"
reload router
said 'info router option_changed option=drain-ms old=120000 new=121000'
said 'info router option_changed option=log-level old=info new=debug'
said 'info router option_changed option=max-queue-requests old=1000 new=5'
said 'warn router option_not_changed option=bins-ahead old=2 new=3 effect="restart the program to apply it"'
silent "max-wait-ms"
equal 5 "$(status_json | jq .queue.capacity_requests)" "places of the queue"
as acme generate --prompt Hi --max-tokens 1 >/dev/null
grep -q "debug router bin_dispatched" "$work/router.log" || fail "the log level did not change"
echo "log-level = loud" >>"$work/router.conf"
reload router
said 'error router config_refused reason=".*router.conf:11: --log-level .loud.: must be one of .*" effect="all options stay as they are"'
cp "$work/first.conf" "$work/router.conf"
reload router
said 'option_changed option=drain-ms old=121000 new=120000'
grep -q 'option_changed option=log-level old=debug new=info' "$work/router.log" || fail "the default is not back"
echo "log-level = debug" >"$work/worker.conf"
reload worker
said 'info worker option_changed option=log-level old=info new=debug'
as acme generate --prompt Hi --max-tokens 1 >/dev/null
wait_until 20 "the worker logs at debug" grep -q "debug worker sequence_done" "$work/worker.log"

wait "$client" || fail "the request that ran meanwhile"
equal "$(jq -cS .token_ids "$work/expected")" "$(jq -cS .token_ids "$work/answer")" "tokens"
for secret in "$old" "$(cat "$work/acme.key")" the-first-secret the-second-secret; do
    if grep -qF -- "$secret" "$work"/*.log; then fail "a secret is in a log"; fi
done
if grep -q "$(sha256sum <(printf %s "$old") | cut -c1-16)" "$work"/*.log; then fail "the hash of a secret is in a log"; fi

# While the router drains, SIGHUP is not the second signal that ends it at once.
ask "Count to a thousand" 1500 >"$work/last" &
client=$!
wait_until 20 "the last request runs" status_is '.queue.running == 1'
kill -TERM "$router"
wait_until 20 "the router drains" grep -q shutdown_started "$work/router.log"
kill -HUP "$router"
wait "$client" || fail "the last request"
wait "$router" || fail "the router did not end well"
kill -TERM "$worker"
wait "$worker" || fail "the worker did not end well"
echo "reload: all passed"
