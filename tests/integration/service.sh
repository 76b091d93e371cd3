#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Router and nodes as services: --check-config, the messages to the service manager (start, reload, refused reload,
# state, watchdog, stop), and --shutdown-delay-ms.
. "$(dirname "$0")/lib.sh"

# --- --check-config

check() { "$bin/forepack-$1" --check-config "${@:2}" >"$work/checked" 2>"$work/error"; }
accepted() {
    check "$@" || fail "$1 refuses a good configuration: $(cat "$work/error")"
    equal "forepack-$1: the configuration can be used" "$(cat "$work/checked")" "output of a check"
}
refused() { # refused WORDS PROGRAM FLAGS...
    local code=0
    check "${@:2}" || code=$?
    equal 2 $code "exit code of a check that must find: $1"
    grep -q -- "$1" "$work/error" || fail "wrong reason: '$(cat "$work/error")' instead of '$1'"
    equal 1 "$(grep -cv "info\|warn" "$work/error")" "lines of a refused check"
}
choose_ports
"$source_dir/deploy/certificates.sh" --days 30 "$work/certs" router=127.0.0.1
(umask 077 && echo the-secret-of-the-nodes >"$work/token" && echo short >"$work/short")
echo "bins-ahead = many" >"$work/typo.conf"
echo "not a key" >"$work/keys"
tls=(--tls-cert "$work/certs/router.pem" --tls-key "$work/certs/router.key")

(exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && fail "the port is in use"
accepted router --model "$main_model" "${listen[@]}" "${tls[@]}" --cluster-token-file "$work/token" --batch-dir "$work/new"
[ ! -e "$work/new" ] || fail "a check created the folder of batches"
refused "typo.conf:1: --bins-ahead .many." router --model "$main_model" --config "$work/typo.conf"
refused "directory of the main model is required" router
refused "No such file" router --model "$work/nothing"
refused "without TLS" router --model "$main_model" --host 0.0.0.0
refused "must be given together" router --model "$main_model" --tls-cert "$work/certs/router.pem"
refused "is not the private key of" router --model "$main_model" --tls-cert "$work/certs/router.pem" --tls-key "$work/certs/ca.key"
refused "must have at least 16" router --model "$main_model" --cluster-token-file "$work/short"
refused "keys: line 1" router --model "$main_model" --api-keys "$work/keys"
refused "is not a folder" router --model "$main_model" --batch-dir "$work/token"
refused "headers.txt: No such file" router --model "$main_model" --otlp-endpoint 127.0.0.1:1 --otlp-headers-file "$work/headers.txt"

# --- the router and its service manager

said() { grep -q -- "$2" "$work/$1-manager.log"; }
manager() { # manager NAME: starts the manager of a program; $notify are the words that start it
    start "$1-manager" python3 "$source_dir/tests/integration/notify_listener.py" "$work/$1.sock"
    wait_until 20 "the manager of $1 listens" test -S "$work/$1.sock"
    notify=(env "NOTIFY_SOCKET=$work/$1.sock" WATCHDOG_USEC=2000000)
}
count() { grep -c -- "$2" "$work/$1-manager.log" || true; }
more() { [ "$(count "$1" "$2")" -gt "$3" ]; }
await_more() { # await_more NAME WORDS: a message with the words comes from now on
    local before
    before=$(count "$1" "$2")
    wait_until 30 "$1 sends $2" more "$1" "$2" "$before"
}

manager router
cat >"$work/router.conf" <<END
model = $main_model
cluster-token-file = $work/token
shutdown-delay-ms = 600000
END
start router "${notify[@]}" "$bin/forepack-router" --config "$work/router.conf" "${listen[@]}"
router=$last_pid
wait_until 30 "the router is ready" said router '^READY=1$'
"$bin/forepack" status --server "$server" >/dev/null || fail "READY=1 came before the port was open"
wait_until 30 "the router says that it has no node" said router 'STATUS=Refuses requests, because no worker group is ready'
await_more router '^WATCHDOG=1$'

kill -HUP "$router"
wait_until 20 "the reload begins" said router '^RELOADING=1 MONOTONIC_USEC=[0-9]'
wait_until 20 "the reload ends" more router '^READY=1$' 1
cp "$work/router.conf" "$work/good.conf"
echo "bins-ahead = many" >>"$work/router.conf"
kill -HUP "$router"
wait_until 20 "the refused reload is shown" said router 'STATUS=.*The last reload was refused: .*router.conf:4: --bins-ahead .many.'
cp "$work/good.conf" "$work/router.conf"
echo short >"$work/token"
kill -HUP "$router"
wait_until 20 "the refused token is shown" said router 'STATUS=.*refused: .*token: the secret has 5 characters'
kill -HUP "$router"
wait_until 20 "the second reload ends" more router '^READY=1$' 4
tail -n 1 <(grep STATUS "$work/router-manager.log") | grep refused >/dev/null || fail "a file that is still broken is no longer shown"
(umask 077 && echo the-secret-of-the-nodes >"$work/token")
kill -HUP "$router"
last_status_is_good() { ! grep STATUS "$work/router-manager.log" | tail -n 1 | grep refused; }
wait_until 20 "a good reload clears the reason" last_status_is_good

# --- a node and its service manager

start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --cluster-token-file "$work/token" --threads 1
worker=$last_pid
wait_until 60 "the cluster is ready" ready
wait_until 20 "the router counts its nodes" said router 'STATUS=Serves: 0 requests running, 0 waiting; 1 worker groups'

# --- the router leaves: not ready, but serving; then it drains

code_of() { curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$http_port$1"; }
not_ready() { [ "$(code_of /ready)" = 503 ]; }
kill -TERM "$router"
wait_until 20 "the router is not ready" not_ready
wait_until 20 "the router says that it stops" said router '^STOPPING=1$'
equal 200 "$(code_of /health)" "health while the router leaves"
equal 4 "$(generate --prompt Hello --max-tokens 4 --ignore-eos | jq .usage.completion_tokens)" "tokens of a request after SIGTERM"
curl -sf "http://127.0.0.1:$http_port/v1/completions" -H 'content-type: application/json' \
    -d '{"model":"main","prompt":"Hello","max_tokens":2}' >/dev/null || fail "a new HTTP request after SIGTERM was refused"
wait_until 20 "the state is shown" said router 'STATUS=Shuts down soon, still serves'
await_more router '^WATCHDOG=1$'
grep -q shutdown_started "$work/router.log" && fail "the router drains already"
kill -TERM "$router" # the second signal ends the delay
wait "$router" || fail "the router ended with $?"
echo "service: all passed"
