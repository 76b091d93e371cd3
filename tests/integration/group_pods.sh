#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A worker group over two pods, as in deploy/kubernetes/overlays/405b-fp8-2x8: forepack-group in two network namespaces,
# with forepack-worker --lead and --join. Its answers equal those of one process. Strangers, another token, another
# version and a recorded connection start nothing. A group that loses a pod ends and forms again; SIGTERM to both pods
# drains it. With and without TLS. Needs root, ip, unshare and mpirun.
skip() {
    echo "skipped: group_pods needs $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip root
for tool in ip unshare mpirun python3 pgrep openssl; do command -v $tool >/dev/null || skip $tool; done
. "$(dirname "$0")/lib.sh"
grep -q mpirun <<<"$("$bin/forepack-worker" --help)" || skip "a build with MPI"

net=fg$$
ip netns add "$net-0" 2>/dev/null || skip "network namespaces"
ip netns add "$net-1"
short=$(mktemp -d /tmp/fg-XXXXXX)
remove_pods() {
    local status=$? pod
    set +e
    for pod in 0 1; do
        ip netns pids "$net-$pod" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
        ip netns del "$net-$pod"
    done
    rm -rf "$short"
    (exit $status)
    clean_up
}
trap remove_pods EXIT
ip -n "$net-0" link add eth0 type veth peer name eth0 netns "$net-1"
for pod in 0 1; do
    ip -n "$net-$pod" addr add "10.78.0.$((pod + 1))/24" dev eth0
    ip -n "$net-$pod" link set eth0 up
    ip -n "$net-$pod" link set lo up
done
printf '127.0.0.1 localhost\n10.78.0.1 pods-0 pods-0.pods\n10.78.0.2 pods-0-1 pods-0-1.pods\n' >"$work/hosts"
"$source_dir/deploy/certificates.sh" "$work/certs" router=10.78.0.1 node
# Certificates of nodes in deploy/kubernetes/components/tls are for clients only.
openssl req -new -key "$work/certs/node.key" -subj /CN=node 2>/dev/null |
    openssl x509 -req -CA "$work/certs/ca.pem" -CAkey "$work/certs/ca.key" -CAcreateserial -days 1 -out "$work/certs/node.pem" \
        -extfile <(printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n') 2>/dev/null
printf 'a-secret-of-the-cluster\n' >"$work/token"
printf 'another-secret\n' >"$work/wrong"
chmod 0600 "$work/token" "$work/wrong"

# in_pod INDEX COMMAND...: in the pod's network, under its host name, with its own TMPDIR.
in_pod() {
    local name=pods-0 index=$1
    [ "$index" = 0 ] || name=pods-0-$index
    exec ip netns exec "$net-$index" unshare --uts --mount --pid --fork --mount-proc --kill-child bash -c '
        mount --bind "$2/hosts" /etc/hosts && mkdir -p "$3/$1" && hostname "$1" && export TMPDIR="$3/$1"
        exec "${@:4}"' pod "$name" "$work" "$short" "${@:2}"
}
pod_command() { # pod_command INDEX TOKEN_FILE OPTIONS...
    in_pod "$1" env LWS_LEADER_ADDRESS="${leader_address:-pods-0.pods}" LWS_GROUP_SIZE=2 LWS_WORKER_INDEX="$1" PROGRAM="$bin/forepack-worker" \
        "MPIRUN_OPTIONS=--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0" "$source_dir/deploy/containers/forepack-group" \
        --model "$main_model" --router 10.78.0.1:50052 --threads 1 --dtype f32 --step-timeout-s 5 --cluster-token-file "$2" "${@:3}"
}
pod() { pod_command "$1" "$work/token" "${tls[@]}"; } # one pod of the group
tls=()
start_pod() { # start_pod NAME INDEX: the pid of its first process is in $pod_pid
    start "$1" pod "$2"
    last=$last_pid
    wait_until 20 "$1 runs" pgrep -P "$last_pid"
    pod_pid=$(pgrep -P "$last_pid")
}
log_has() { grep -q "$2" "$work/$1.log"; }
expect_log() { wait_until 30 "$1.log has '$2'" log_has "$1" "$2"; }
forepack() { (in_pod 0 "$bin/forepack" "$@"); }
stranger() { (in_pod 1 python3 "$source_dir/tests/integration/join_stranger.py" "$@"); }
server=10.78.0.1:50051
status_json() { forepack status --server "$server" --json; }
generate() { forepack generate --server "$server" --json --prompt "The code of the house is" --max-tokens 100 --ignore-eos; }
expected=$("$bin/forepack" generate --model "$main_model" --dtype f32 --threads 1 --json --prompt "The code of the house is" --max-tokens 100 \
    --ignore-eos | jq -r .text)
formed() { nodes worker 1; }
serves() { # serves WHAT
    wait_until 60 "$1 is ready" formed
    equal "$expected" "$(generate | jq -r .text)" "the answer of $1"
}
ended() { # ended PID CODE WHAT
    local code=0
    wait "$1" || code=$?
    equal "$2" $code "exit code of $3"
}

start_router() { # start_router OPTIONS...
    start router in_pod 0 "$bin/forepack-router" --model "$main_model" --host 10.78.0.1 --http-port -1 --insecure --worker-grace-ms 120000 \
        --cluster-token-file "$work/token" "$@"
    router=$last_pid
}
start_router

# ---- strangers, while the leader waits for its follower ----
start_pod leader 0
leader=$last
expect_log leader followers_awaited
stranger garbage 10.78.0.1 50053
equal "proof of the leader ended" "$(stranger hello 10.78.0.1 50053 a-secret-of-the-cluster 0.0.1 | tr '\n' ' ' | sed 's/ $//')" "another version"
expect_log leader 'has version 0.0.1 and this program'
grep -q "its cluster token is not the leader's" <<<"$(stranger hello 10.78.0.1 50053 guessed 0.0.1)" || fail "a guessed token is accepted"
start wrong pod_command 1 "$work/wrong"
expect_log wrong 'refuses this host: its cluster token is not the leader'
expect_log leader "its cluster token is not this group's"
log_has leader follower_joined && fail "a stranger has joined"
log_has leader group_starting && fail "a stranger formed a group"
kill -KILL $(pgrep -P "$last_pid")

# A follower whose leader lacks the token starts nothing.
start false_leader in_pod 0 python3 "$source_dir/tests/integration/join_stranger.py" leader 50099 "$work/stranger-was-here"
expect_log false_leader listening
start misled in_pod 1 "$bin/forepack-worker" --join 10.78.0.1:50099 --cluster-token-file "$work/token"
expect_log misled 'does not know the cluster token'
kill -KILL $(pgrep -P "$last_pid")
[ ! -e "$work/stranger-was-here" ] || fail "a stranger's command ran"

# ---- the group forms through a relay that records the follower; its bytes are worth nothing later ----
start relay in_pod 1 python3 "$source_dir/tests/integration/join_stranger.py" relay 50053 10.78.0.1 50053 "$work/record"
expect_log relay listening
leader_address=10.78.0.2 start_pod follower 1
follower=$last follower_pid=$pod_pid
serves "the group of two pods"
log_has follower daemon_started || fail "the follower started no daemon"
[ "$(stat -c %s "$work/record")" -gt 100 ] || fail "the relay recorded nothing"
grep -q a-secret-of-the-cluster "$work/record" && fail "the token was sent in clear"
grep -q "its cluster token is not the leader's" <<<"$(stranger replay 10.78.0.1 50053 "$work/record")" || fail "a recorded connection is accepted"
grep -q "the group has all of its hosts" <<<"$(stranger hello 10.78.0.1 50053 a-secret-of-the-cluster 0.0.1)" || fail "a second follower is accepted"

# ---- a pod is lost; TLS ----
kill -KILL "$follower_pid"
ended "$leader" 1 "the leader whose follower is lost"
log_has leader follower_lost || fail "the leader does not say which follower is lost"
tls=(--node-tls-ca "$work/certs/ca.pem" --node-tls-cert "$work/certs/node.pem" --node-tls-key "$work/certs/node.key")
kill -KILL $(pgrep -P "$router")
wait "$router" || true
start_router --node-tls-ca "$work/certs/ca.pem" --node-tls-cert "$work/certs/router.pem" --node-tls-key "$work/certs/router.key"
start_pod leader2 0
leader=$last leader_pid=$pod_pid
start plain pod_command 1 "$work/token"
expect_log leader2 'follower_refused.*TLS failed'
expect_log plain 'leader_not_joined.*--node-tls'
kill -KILL $(pgrep -P "$last_pid")
stranger garbage 10.78.0.1 50053
log_has leader2 follower_joined && fail "a follower without TLS has joined"
start_pod follower2 1
follower=$last follower_pid=$pod_pid
serves "the group that formed again, with TLS"
log_has follower2 'group_joined.*tls=true' || fail "the follower does not use TLS"

# ---- the leader is lost: its follower ends the ranks and waits for the next one ----
kill -KILL "$leader_pid"
wait "$leader" || true
expect_log follower2 leader_lost
no_daemons() { ! grep -qE 'orted|forepack-worker' <<<"$(ip netns pids "$net-1" | grep -v "^$follower_pid\$" | xargs -r -I{} cat /proc/{}/comm 2>/dev/null | grep -v unshare)"; }
wait_until 30 "the ranks of the follower have ended" no_daemons
start_pod leader3 0
leader=$last leader_pid=$pod_pid
serves "the group with the next leader"
equal 2 "$(grep -c group_joined "$work/follower2.log")" "leaders of the follower"

# ---- both pods get SIGTERM at once, as when a group is scaled down ----
generate >"$work/answer.json" 2>"$work/answer.log" &
request=$!
wait_until 60 "the request runs" status_is '.queue.running >= 1'
kill -TERM "$leader_pid" "$follower_pid"
wait $request || fail "the request failed during the drain: $(cat "$work/answer.log")"
equal "$expected" "$(jq -r .text "$work/answer.json")" "the answer during the drain"
ended "$leader" 0 "the leader"
ended "$follower" 0 "the other pod"

# ---- bad input ----
bad() { # bad CODE TEXT COMMAND...
    local code=0
    (in_pod 0 env -u FOREPACK_OPT_JOIN "${@:3}") >"$work/bad" 2>&1 || code=$?
    equal "$1" $code "exit code of: ${*:3}"
    grep -q -- "$2" "$work/bad" || fail "wrong reason: $(cat "$work/bad")"
}
worker=$bin/forepack-worker
bad 2 'give one of them' "$worker" --join a:1 --lead :1
bad 2 "--join 'a'" "$worker" --join a --cluster-token-file "$work/token"
bad 2 'cluster-token-file: required' "$worker" --join a:1
bad 2 '/no-token' "$worker" --join a:1 --cluster-token-file /no-token
bad 2 'orted is not in PATH' env PATH=/nothing "$worker" --join a:1 --cluster-token-file "$work/token"
bad 2 'need both for TLS' "$worker" --join a:1 --cluster-token-file "$work/token" --node-tls-ca "$work/certs/ca.pem"
lead=("$worker" --model "$main_model" --router 10.78.0.1:50052 --hosts 2 --cluster-token-file "$work/token")
bad 1 'port 50051 is in use' "${lead[@]}" --lead 10.78.0.1:50051
bad 1 '0 of 1 other hosts joined within --hosts-wait-s 1' "${lead[@]}" --lead :50054 --hosts-wait-s 1
