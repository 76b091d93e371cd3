#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A cluster over several hosts: network namespaces joined by a bridge, with a router, two speculators of equal host name
# and process id, a group of two ranks on two hosts, and a group on one host. Ranks, links, leaders and the router fail
# while a batch runs: every answer comes once and equals the undisturbed cluster's. Connections use TLS, nodes show
# certificates. Needs root, `ip` and `unshare`.
if [ "$(id -u)" != 0 ] || ! type ip unshare mpirun >/dev/null 2>&1; then
    echo "multi_host: needs root, ip (iproute2), unshare and mpirun"
    exit 77
fi
. "$(dirname "$0")/lib.sh"

# Removes namespaces of a killed run: fpPID-NAME of a process that is gone.
remove_leftovers() {
    local name pid
    for name in $(ip netns list | grep -oE '^fp[0-9]+-(switch|[0-9])\b' || true); do
        pid=${name%%-*} pid=${pid#fp}
        [ ! -e "/proc/$pid" ] || continue
        ip netns pids "$name" | xargs -r kill -KILL 2>/dev/null || true
        ip netns del "$name"
    done
}
remove_leftovers
net=fp$$ # names of the namespaces begin with it
if ! ip netns add "$net-switch" 2>"$work/refused"; then
    echo "multi_host: no network namespaces here: $(cat "$work/refused")"
    exit 77
fi

agent=$(mktemp /tmp/forepack-agent-XXXXXX) # mpirun splits the path at blanks, so it is not in $work
hosts=(1 2 3 4 5 6)
end_host() { ip netns pids "$net-$1" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true; }
remove_hosts() {
    local status=$? host
    set +e
    for host in "${hosts[@]}"; do
        end_host "$host"
        ip netns del "$net-$host" 2>/dev/null
    done
    ip netns del "$net-switch"
    rm -f "$agent"
    (exit $status)
    clean_up
}
trap remove_hosts EXIT

ip -n "$net-switch" link add switch type bridge
ip -n "$net-switch" link set switch up
for host in "${hosts[@]}"; do
    ip netns add "$net-$host"
    ip -n "$net-$host" link add eth0 type veth peer name "port$host" netns "$net-switch"
    ip -n "$net-switch" link set "port$host" master switch up
    ip -n "$net-$host" addr add "10.77.0.$host/24" dev eth0
    ip -n "$net-$host" link set eth0 up
    ip -n "$net-$host" link set lo up
done
# A bridge with the same IP address on each host, which does not connect the hosts.
for host in 4 5; do
    ip -n "$net-$host" link add docker0 type bridge
    ip -n "$net-$host" addr add 172.17.0.1/16 dev docker0
    ip -n "$net-$host" link set docker0 up
done
link() { ip -n "$net-switch" link set "port$1" "$2"; }

# on HOST NAME COMMAND...: runs on that host, under that host name.
on() { exec ip netns exec "$net-$1" unshare --uts bash -c 'hostname "$0"; exec "$@"' "${@:2}"; }
server=10.77.0.1:50051 certs=$work/certs
"$source_dir/deploy/certificates.sh" "$certs" router=10.77.0.1 node
router_tls=(--tls-cert "$certs/router.pem" --tls-key "$certs/router.key" --node-tls-cert "$certs/router.pem"
    --node-tls-key "$certs/router.key" --node-tls-ca "$certs/ca.pem")
attach=(--router 10.77.0.1:50052 --node-tls-ca "$certs/ca.pem" --node-tls-cert "$certs/node.pem" --node-tls-key "$certs/node.key")
forepack() { (on 1 router "$bin/forepack" "$@"); }
status_json() { forepack status --server "$server" --tls-ca "$certs/ca.pem" --json; }

start_router() { start router on 1 router "$bin/forepack-router" --model "$main_model" --host 10.77.0.1 --http-port -1 "${router_tls[@]}" --heartbeat-ms 500 --worker-grace-ms 60000; router_pid=$last_pid; }
# In its own PID namespace, so that both speculators have the same process id.
start_speculator() { start "speculator$1" on "$1" twin unshare --pid --fork --kill-child "$bin/forepack-speculator" --model "$spec_model" "${attach[@]}" --threads 1; }
worker=("$bin/forepack-worker" --model "$main_model" "${attach[@]}" --threads 1 --dtype f32 --max-num-seqs 4 --step-timeout-s 2)

# The launcher of Open MPI: runs a command on another host.
cat >"$agent" <<AGENT
#!/usr/bin/env bash
host=\${1##*.}
shift
exec ip netns exec "$net-\$host" unshare --uts bash -c "hostname node-\$host; \$*"
AGENT
chmod +x "$agent"
connects=(--mca btl_tcp_if_include 10.77.0.0/24)
keepalive=(--mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 2)
# start_group NAME MPI_OPTIONS... [-- WORKER_OPTIONS...]
start_group() {
    local name=$1 mpi=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do mpi+=("$1") && shift; done
    start "$name" on 4 node-4 mpirun --allow-run-as-root --host 10.77.0.4:1,10.77.0.5:1 -n 2 --bind-to none \
        --mca plm_rsh_agent "$agent" --mca oob_tcp_if_include 10.77.0.0/24 "${mpi[@]}" "${worker[@]}" "${@:2}"
    group_pid=$last_pid
}
end_group() { end_host 4 && end_host 5 && { wait "$group_pid" 2>/dev/null || true; }; }
# rank N: the process of that rank of the group.
rank() {
    local pid
    for pid in $(ip netns pids "$net-$((4 + $1))"); do
        grep -qz "^OMPI_COMM_WORLD_RANK=$1\$" "/proc/$pid/environ" && [ "$(cat "/proc/$pid/comm")" = forepack-worker ] && echo "$pid" && return
    done
}

# Groups that cannot form say so and end.
start_group unformed -- --group-timeout-s 3
unformed_pid=$group_pid
start_router
start_speculator 2
start_speculator 3
start alone on 6 node-6 "${worker[@]}"
wait_until 60 "the group of one host is ready" nodes worker 1
wait_until 60 "two speculators of equal host name and process id" nodes speculator 2
equal 0 "$(grep -c node_refused "$work/router.log" || true)" "nodes refused"

jq -cn 'range(48) | {id: "row \(.)", prompt: "Question \(.): what is the colour of the house?", max_tokens: 48, ignore_eos: true}' >"$work/in.jsonl"
start_batch() { start "batch-$1" on 1 router "$bin/forepack" batch --server "$server" --tls-ca "$certs/ca.pem" --input "$work/in.jsonl" --output "$work/$1.jsonl" --prefill off; batch_pid=$last_pid; }
sorted() { jq -cS '{id, token_ids, finish_reason}' "$1" | sort; }
as_calm() { # as_calm NAME WHAT
    wait "$batch_pid" || fail "the batch failed: $2"
    equal "$(sorted "$work/calm.jsonl")" "$(sorted "$work/$1.jsonl")" "answers: $2"
}
start_batch calm
wait "$batch_pid"
group_tokens() { status_json | jq '[.nodes[] | select(.role == "worker" and .ranks == 2) | .tokens_out] | add // 0'; }
# Starts the batch and returns while the group generates a part of it. The router may give a whole batch to the group of
# one host, which is faster: then the batch starts again.
start_batch_on_group() { # start_batch_on_group NAME
    local before end=$((SECONDS + 150))
    before=$(group_tokens)
    start_batch "$1"
    until [ "$(group_tokens)" -gt $((before + 8)) ]; do
        [ $SECONDS -lt $end ] || fail "waited too long until the group over two hosts generates: $1"
        kill -0 "$batch_pid" 2>/dev/null || { rm "$work/$1.jsonl" && start_batch "$1"; }
        sleep 0.1
    done
}
group_gone() { status_is '[.nodes[] | select(.role == "worker" and .ranks == 2)] == []'; }
wait_until 60 "the group that cannot form ends" grep -q "group_not_formed .*btl_tcp_if_include NET" "$work/unformed.log"
code=0
wait "$unformed_pid" || code=$?
[ $code != 0 ] || fail "the group that did not form ended with 0"

# Ranks of one host in containers: each has its own host name.
start names on 6 node-6 mpirun --allow-run-as-root --oversubscribe --bind-to none -n 1 "${worker[@]}" : \
    -n 1 unshare --uts bash -c 'hostname "$0"; exec "$@"' container "${worker[@]}"
wait_until 60 "a group of ranks with different host names" nodes worker 2
kill -TERM "$last_pid" && wait "$last_pid" || true
wait_until 30 "it is gone" group_gone

# A rank is killed.
start_group killed "${connects[@]}" "${keepalive[@]}"
wait_until 60 "two groups" nodes worker 2
start_batch_on_group killed-rank
kill -KILL "$(rank 1)"
as_calm killed-rank "when a rank was killed"
wait_until 30 "its leader names the rank" grep -q 'rank_lost rank=1 reason="rank 1 (host node-5, pid [0-9]*) is gone' "$work/killed.log"
end_group

# The link between the ranks is cut.
start_group cut "${connects[@]}" "${keepalive[@]}"
wait_until 60 "two groups" nodes worker 2
start_batch_on_group cut-link
link 5 down
as_calm cut-link "when a link was cut"
wait_until 30 "the group with a cut link is gone" group_gone
end_group
link 5 up

# The leader stops.
start_group stopped "${connects[@]}"
wait_until 60 "two groups" nodes worker 2
start_batch_on_group stopped-leader
kill -STOP "$(rank 0)"
as_calm stopped-leader "when a leader stopped"
end_group

# The router is killed, and the link between the ranks of the idle group is cut: the group does not attach again.
start_group unlinked "${connects[@]}"
wait_until 60 "two groups" nodes worker 2
start_batch_on_group router-restart
link 5 down
kill -KILL "$router_pid"
wait "$router_pid" 2>/dev/null || true
start_router
as_calm router-restart "when the router was killed"
wait_until 60 "the group with a cut link ends" grep -q "\(check\|step\)_stuck .*reason=\"rank 1 (host node-5, pid [0-9]*) does not answer" "$work/unlinked.log"
equal 0 "$(grep -c 'node_attached .*ranks=2' "$work/router.log" || true)" "attachments of a group with a cut link"
wait_until 30 "both speculators are back" nodes speculator 2
echo "multi_host: all passed"
