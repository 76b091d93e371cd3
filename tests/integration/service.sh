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

accepted worker --model "$main_model" --router "$node_server" --cluster-token-file "$work/token" --probe-listen 9100
accepted speculator --model "$spec_model"
refused "a checkpoint directory is required" worker
refused "No such file" worker --model "$work/nothing"
refused "max-num-seqs 64: must be at most" worker --model "$main_model" --max-num-batched-tokens 32
refused "kv-cache-dtype int8: a model computed in f32" worker --model "$main_model" --dtype f32 --kv-cache-dtype int8
refused "node-tls-ca: required with" worker --model "$main_model" --node-tls-cert "$work/certs/router.pem"
refused "ca.pem: No such file" worker --model "$main_model" --node-tls-ca "$work/ca.pem"
refused "probe-listen 0.0.0.0:9100: other machines could read" speculator --model "$spec_model" --probe-listen 0.0.0.0:9100
mkdir "$work/spec"
cp "$spec_model"/* "$work/spec"
truncate -s 1000 "$work/spec/"*.safetensors
refused "spec/model.safetensors" speculator --model "$work/spec"
cp "$spec_model"/*.safetensors "$work/spec"
echo "{" >"$work/spec/calibration.json"
refused "calibration.json" speculator --model "$work/spec"

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

manager worker
probe_port=$(free_port)
probe() { curl -s -o "$work/probed" -w '%{http_code}' "http://127.0.0.1:$probe_port$1"; }
probe_is() { [ "$(probe "$1")" = "$2" ]; }
echo "log-level = info" >"$work/worker.conf"
(umask 077 && echo another-secret-of-nodes >"$work/other")
worker_flags=(--config "$work/worker.conf" --model "$main_model" --router "$node_server" --threads 1 --step-timeout-s 0 --probe-listen "$probe_port")
start worker "${notify[@]}" "$bin/forepack-worker" "${worker_flags[@]}" --cluster-token-file "$work/other"
worker=$last_pid
wait_until 60 "the worker lives" probe_is /live 200
wait_until 60 "the worker is refused" grep -q router_refused "$work/worker.log"
equal 503 "$(probe /ready)" "readiness of a node that is not attached"
grep -q "the node is detached" "$work/probed" || fail "/ready says: $(cat "$work/probed")"
said worker '^EXTEND_TIMEOUT_USEC=' || fail "the start is not extended"
wait_until 20 "the state is shown" said worker "STATUS=Is not attached to the router $node_server"
if said worker '^READY=1$'; then fail "READY=1 before the worker was attached"; fi
(umask 077 && echo the-secret-of-the-nodes >"$work/other")
wait_until 60 "the worker is ready" said worker '^READY=1$'
wait_until 60 "the cluster is ready" ready
equal 200 "$(probe /ready)" "readiness of the worker"
equal 4 "$(generate --prompt Hello --max-tokens 4 --ignore-eos | jq .usage.completion_tokens)" "tokens"
equal 200 "$(probe /metrics)" "metrics of the worker"
commit_of() { "$bin/forepack-$1" --version | sed 's/.*(commit \(.*\))/\1/'; }
commit=$(commit_of worker)
grep -q "^forepack:build_info{version=\".*\",commit=\"$commit\",role=\"worker\"} 1\$" "$work/probed" || fail "no build_info: $(cat "$work/probed")"
for line in "node_live 1" "node_ready 1" "node_loaded_ratio 1" "num_requests_running 0"; do
    grep -q "^forepack:$line\$" "$work/probed" || fail "no metric $line: $(cat "$work/probed")"
done
[ "$(sed -n 's/^forepack:pass_stages_total //p' "$work/probed")" -gt 0 ] || fail "no pass was counted"
equal 404 "$(probe /v1/models)" "other paths of the probe port"
head -n 1 "$work/worker.log" | grep "settings version=.* commit=$commit " >/dev/null || fail "the first line of the log: $(head -n 1 "$work/worker.log")"
commit=$(commit_of router)
head -n 1 "$work/router.log" | grep "settings version=.* commit=$commit " >/dev/null || fail "the first line of the log: $(head -n 1 "$work/router.log")"
curl -s "http://127.0.0.1:$http_port/metrics" | grep "^forepack:build_info{version=\".*\",commit=\"$commit\"} 1\$" >/dev/null || fail "build_info of the router"
echo "log-level = loud" >"$work/worker.conf"
kill -HUP "$worker"
wait_until 20 "the refused reload is shown" said worker 'STATUS=Attached to the router .*reload was refused: .*--log-level'
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
kill -TERM "$worker"
wait "$worker" || fail "the worker ended with $?"
said worker '^STOPPING=1$' || fail "the worker did not say that it stops"

# --- a working thread that hangs is not alive

start router "$bin/forepack-router" --model "$main_model" --cluster-token-file "$work/token" --stall-timeout-ms 0 "${listen[@]}"
router=$last_pid
echo "log-level = info" >"$work/worker.conf"
manager hanging
start worker "${notify[@]}" "$bin/forepack-worker" "${worker_flags[@]}" --cluster-token-file "$work/token"
worker=$last_pid
wait_until 60 "the cluster is ready" ready
start stopped "$bin/stop_thread" "$worker" # the main thread has the id of its process
stopped=$last_pid
is_stopped() { grep -q stopped "$work/stopped.log" || ! kill -0 "$stopped"; }
wait_until 20 "the thread is stopped" is_stopped
if grep -q stopped "$work/stopped.log"; then
    generate --prompt Hello --max-tokens 4 >/dev/null 2>&1 &
    wait_until 60 "the node is not alive" probe_is /live 503
    grep -q "made no progress for 30 s" "$work/probed" || fail "/live says: $(cat "$work/probed")"
    kill -KILL "$stopped"
    wait_until 20 "the node is alive again" probe_is /live 200
else
    echo "skipped: this machine does not allow a thread to be stopped"
fi
kill -TERM "$worker"
wait "$worker" || fail "the worker ended with $?"
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"

# --- the journal: a priority and no time; other readers get the date and the zone

mkfifo "$work/journal"
journal() { # journal COMMAND...: runs a command whose standard error is the journal, which is collected in journal.log
    cat "$work/journal" >"$work/journal.log" &
    local reader=$!
    (exec 2>"$work/journal" && JOURNAL_STREAM=$(stat -L -c '%d:%i' "$work/journal") exec "$@") || true
    wait "$reader"
}
journal "$bin/forepack-router" --model "$work/nothing"
grep -q '^<6>info router settings ' "$work/journal.log" || fail "no priority: $(cat "$work/journal.log")"
grep -q '^<3>error router start_failed ' "$work/journal.log" || fail "no priority of an error: $(cat "$work/journal.log")"
JOURNAL_STREAM=1:2 "$bin/forepack-router" --model "$work/nothing" 2>"$work/plain.log" || true
grep -qE '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}(Z|[+-][0-9]{2}:[0-9]{2}) error router start_failed ' "$work/plain.log" ||
    fail "no date: $(cat "$work/plain.log")"

# --- a group under mpirun: signals to all its processes count once, rank 0 speaks to the manager and to the journal

if ! type mpirun >/dev/null 2>&1 || ! grep -q mpi <<<"$(ldd "$bin/forepack-worker")"; then
    echo "service: all passed, without groups (no MPI)"
    exit
fi
start router "$bin/forepack-router" --model "$main_model" --cluster-token-file "$work/token" "${listen[@]}"
router=$last_pid
manager group
cat "$work/journal" >"$work/group.log" &
start mpirun bash -c 'exec 2>"$0"; JOURNAL_STREAM=$(stat -L -c "%d:%i" "$0") exec "$@"' "$work/journal" "${notify[@]}" \
    mpirun --oversubscribe --bind-to none -n 2 "$bin/forepack-worker" --model "$main_model" --router "$node_server" --cluster-token-file "$work/token" --threads 1
mpirun=$last_pid
wait_until 60 "the group is ready" ready
wait_until 20 "rank 0 says that it is ready" said group '^READY=1$'
equal 1 "$(count group '^READY=1$')" "ranks that say that they are ready"
grep -q '^<6>info worker\[0\] ' "$work/group.log" || fail "ranks write no priorities: $(head -n 3 "$work/group.log")"
generate --prompt "Count to a thousand" --max-tokens 1500 --ignore-eos >"$work/answer" &
client=$!
wait_until 20 "the request runs" status_is '.queue.running == 1'
rank0=$(pgrep -P "$mpirun" forepack-worker | head -n 1)
kill -USR1 "$rank0" "$mpirun" # mpirun passes it on
wait_until 20 "the group drains" said group '^STOPPING=1$'
wait "$client" || fail "the request that ran during the drain was lost"
equal 1500 "$(jq .usage.completion_tokens "$work/answer")" "tokens of the request that ran during the drain"
equal 0 "$(jq .usage.replays "$work/answer")" "replays"
wait "$mpirun" || fail "the group ended with $?"
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"

# --- a user without a home and without an entry in the password database

if [ "$(id -u)" = 0 ] && type setpriv >/dev/null 2>&1; then
    chmod 755 "$work"
    mkdir -m 777 "$work/tmp"
    choose_ports
    start up env -u HOME "TMPDIR=/tmp" "XDG_STATE_HOME=$work/tmp" setpriv --reuid 54321 --regid 54321 --clear-groups \
        "$bin/forepack" up --tp 2 --port "$port" --http-port "$http_port" --node-port "$node_port" --main "$main_model" --spec "$spec_model"
    up_pid=$last_pid
    wait_until 120 "the cluster of a user without a home is ready" up_spoke
    grep -q ^ready: "$work/up.log" || fail "no cluster without a home"
    stop_up
else
    echo "skipped: the user without a home, needs root and setpriv"
fi
echo "service: all passed"
