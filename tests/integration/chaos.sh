#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/chaos/processes.sh: kill, freeze, cut, drain, roll, a full disk and an expired certificate while clients send
# requests. No answer may be lost, repeated or different. Wrong options are refused with one sentence.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null || { echo "skipped: chaos needs root, for a small file system"; exit 77; }
chaos_dir=$source_dir/deploy/chaos
export PATH=$bin:$PATH

mkdir "$work/state"
mount -t tmpfs -o size=1m chaos "$work/state"
unmount() {
    local status=$?
    set +e
    umount -l "$work/state"
    (exit $status)
    clean_up
}
trap unmount EXIT
"$source_dir/deploy/certificates.sh" "$work/tls" router=localhost,127.0.0.1
(umask 077 && "$bin/forepack" keys add --file "$work/keys" --tenant ops --operator --tokens-per-day 1000000 >"$work/key")
choose_ports
proxy_port=$(free_port)
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --tls-cert "$work/tls/router.pem" --tls-key "$work/tls/router.key" \
    --api-keys "$work/keys" --state-dir "$work/state"
start proxy python3 "$chaos_dir/proxy.py" "$proxy_port" "$node_server"
proxy=$last_pid
worker() { # worker NAME ADDRESS
    start "$1" "$bin/forepack-worker" --model "$main_model" --threads 1 --router "$2"
}
status_json() { "$bin/forepack" status --server "localhost:$port" --tls-ca "$work/tls/ca.pem" --api-key-file "$work/key" --json; }
worker first "$node_server"
first=$last_pid
worker second "127.0.0.1:$proxy_port"
second=$last_pid
wait_until 60 "two workers are ready" nodes worker 2

processes() { # processes FAULT TARGET OPTIONS...
    "$chaos_dir/processes.sh" "$1" --target "$2" --url "https://localhost:$http_port" --tls-ca "$work/tls/ca.pem" --api-key-file "$work/key" \
        --streams 4 --tokens 60 --for 3 --json "$work/$1.json" "${@:3}" >"$work/chaos-$1.log" 2>&1 || fail "$1 ended with $?: $(tail -n 2 "$work/chaos-$1.log")"
    sed "s/^/$1: /" "$work/chaos-$1.log"
    equal "0 0 0" "$(jq -r '"\(.lost) \(.repeated) \(.different)"' "$work/$1.json")" "lost, repeated and different answers of $1"
    [ "$1" = certificate ] || equal 0 "$(jq .refused "$work/$1.json")" "refused requests of $1"
}

processes disk "$work/state"
[ ! -e "$work/state/.chaos-fill" ] || fail "the file system stays full"
cp "$work/tls/router.pem" "$work/valid.pem"
processes certificate "$work/tls/router.pem"
grep -q "certificate has expired" "$work/chaos-certificate.log" || fail "no client saw the expired certificate"
cmp "$work/valid.pem" "$work/tls/router.pem" || fail "the certificate is not put back"
processes freeze "$first"
wait_until 60 "the frozen worker is back" nodes worker 2
processes cut "$proxy"
wait_until 60 "the worker behind the cut is back" nodes worker 2
processes kill "$first"
third=
faketime=$(find /usr/lib -name libfaketime.so.1 2>/dev/null | tail -n 1) # deploy/packages.sh --deploy installs it
if [ -n "$faketime" ]; then
    echo +0 >"$work/clock"
    start third env "LD_PRELOAD=$faketime" "FAKETIME_TIMESTAMP_FILE=$work/clock" FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 \
        "$bin/forepack-worker" --model "$main_model" --threads 1 --router "$node_server"
else
    worker third "$node_server"
fi
third=$last_pid
wait_until 60 "a third worker is ready" nodes worker 2
if [ -n "$faketime" ]; then processes clock "$work/clock"; else echo "clock: skipped, libfaketime is not installed"; fi
processes drain "$second"
wait "$second" || fail "the drained worker ended with $?"
cd "$work"
processes roll "$third" --server "localhost:$port"
started+=("$(sed -n 's/^process \([0-9]*\) replaces.*/\1/p' chaos-roll.log)")
nodes worker 1 || fail "there is no successor"
third=$proxy

# ---- commands of kubectl: each fault prints a script of the shell ----
for fault in kill freeze cut disk certificate drain roll; do
    "$chaos_dir/kubectl.sh" "$fault" --target some-object >"$work/commands" || fail "kubectl.sh $fault ended with $?"
    bash -n "$work/commands" || fail "kubectl.sh $fault prints no script"
    grep -q "^kubectl .*some-object" "$work/commands" || fail "kubectl.sh $fault does not name its target"
done

# ---- wrong options ----
refused() { # refused TEXT ARGUMENTS...
    local code=0
    "$chaos_dir/processes.sh" "${@:2}" >"$work/refused.log" 2>&1 || code=$?
    equal "2 1" "$code $(wc -l <"$work/refused.log")" "exit code and lines of ${*:2}"
    grep -q -- "$1" "$work/refused.log" || fail "wrong reason: $(cat "$work/refused.log")"
}
refused "a fault is missing"
refused "no fault 'flood'" flood
refused "target is missing" kill
refused "number of a running process" kill --target 999999999
refused "whole number" kill --target "$third" --for 0
refused "root file system" disk --target "$source_dir"
refused "libfaketime\|FAKETIME" clock --target /nothing
refused "takes one" freeze --target "$third" --target "$third"
echo "chaos: all passed"
