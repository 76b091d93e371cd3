#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A worker group over two pods, as in deploy/kubernetes/overlays/405b-fp8-2x8: forepack-group in two network namespaces.
# Its answers equal those of one process, SIGTERM to both pods drains it, and a stranger starts nothing. A pod that is killed
# ends the group. Needs root, ip, unshare, mpirun, ssh and sshd.
skip() {
    echo "skipped: group_pods needs $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip root
for tool in ip unshare mpirun ssh ssh-keygen pgrep; do command -v $tool >/dev/null || skip $tool; done
[ -x /usr/sbin/sshd ] || skip sshd
. "$(dirname "$0")/lib.sh"
grep -q mpirun <<<"$("$bin/forepack-worker" --help)" || skip "a build with MPI"

net=fg$$
ip netns add "$net-0" 2>/dev/null || skip "network namespaces"
ip netns add "$net-1"
short=$(mktemp -d /tmp/fg-XXXXXX) # mpirun divides options at blanks, so keys are not in $work
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
printf '127.0.0.1 localhost\n10.78.0.1 pods-0 pods-0.pods\n10.78.0.2 pods-0-1 pods-0-1.pods\n' >"$short/hosts"
ssh-keygen -q -t ed25519 -N '' -C group -f "$short/id_ed25519"
mkdir -p /run/sshd

# in_pod INDEX COMMAND...: in the pod's network, under its host name, with its own /tmp.
in_pod() {
    local name=pods-0 index=$1
    [ "$index" = 0 ] || name=pods-0-$index
    exec ip netns exec "$net-$index" unshare --uts --mount --pid --fork --mount-proc --kill-child bash -c '
        mount --bind "$2/hosts" /etc/hosts && mkdir -p "$2/tmp-$1" && hostname "$1" && export TMPDIR="$2/tmp-$1"
        exec "${@:3}"' pod "$name" "$short" "${@:2}"
}
pod() { # pod INDEX: one pod of the group
    in_pod "$1" env LWS_LEADER_ADDRESS=pods-0.pods LWS_GROUP_SIZE=2 LWS_WORKER_INDEX="$1" SSH_FOLDER="$short" PROGRAM="$bin/forepack-worker" \
        "MPIRUN_OPTIONS=--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0" "$source_dir/deploy/containers/forepack-group" \
        --model "$main_model" --router 10.78.0.1:50052 --threads 1 --dtype f32 --step-timeout-s 5
}
forepack() { (in_pod 0 "$bin/forepack" "$@"); }
server=10.78.0.1:50051
status_json() { forepack status --server "$server" --json; }
generate() { forepack generate --server "$server" --json --prompt "The code of the house is" --max-tokens 100 --ignore-eos; }

start router in_pod 0 "$bin/forepack-router" --model "$main_model" --host 10.78.0.1 --http-port -1 --insecure --worker-grace-ms 120000
start follower pod 1
follower=$last_pid
start leader pod 0
leader=$last_pid
alive() { kill -0 "$leader" 2>/dev/null || fail "the leader has ended"; }
formed() { alive && nodes worker 1; }
wait_until 60 "the group is ready" formed
expected=$("$bin/forepack" generate --model "$main_model" --dtype f32 --threads 1 --json --prompt "The code of the house is" --max-tokens 100 \
    --ignore-eos | jq -r .text)
equal "$expected" "$(generate | jq -r .text)" "the answer of two pods"

# A stranger with another key, or with the key but another command, starts nothing.
ssh-keygen -q -t ed25519 -N '' -f "$short/stranger"
by_ssh() { (in_pod 0 ssh -p 2222 -i "$1" -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes pods-0-1.pods "${@:2}"); }
by_ssh "$short/stranger" touch "$short/stranger-was-here" 2>"$work/error" && fail "a stranger's key is accepted"
by_ssh "$short/id_ed25519" touch "$short/stranger-was-here" 2>"$work/error" && fail "any command may be started"
grep -q "only mpirun's orted" "$work/error" || fail "wrong reason: $(cat "$work/error")"
[ ! -e "$short/stranger-was-here" ] || fail "a stranger's command ran"

# Both pods get SIGTERM at once, as when a group is scaled down.
generate >"$work/answer.json" 2>"$work/answer.log" &
request=$!
wait_until 60 "the request runs" status_is '.queue.running >= 1'
kill -TERM $(pgrep -P "$leader") $(pgrep -P "$follower")
wait $request || fail "the request failed during the drain: $(cat "$work/answer.log")"
equal "$expected" "$(jq -r .text "$work/answer.json")" "the answer during the drain"
code=0
wait "$leader" || code=$?
equal 0 $code "exit code of the leader"
code=0
wait "$follower" || code=$?
equal 0 $code "exit code of the other pod"

# A killed pod ends the group, which forms again.
start follower2 pod 1
follower=$last_pid
start leader2 pod 0
leader=$last_pid
wait_until 60 "the group is ready again" formed
kill -KILL $(pgrep -P "$follower")
code=0
wait "$leader" || code=$?
[ $code != 0 ] || fail "the group ended with 0 though it lost a pod"
start follower3 pod 1
start leader3 pod 0
leader=$last_pid
wait_until 60 "the group has formed again" formed
equal "$expected" "$(generate | jq -r .text)" "the answer of the group that formed again"
