#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real processes with the options of deploy/kubernetes/overlays/demo-cpu: each probe of the manifests answers, readiness
# follows the state of the cluster, and SIGTERM ends every program with 0. A group of two ranks under forepack-group, the
# first process of a group's container, drains at SIGTERM: no request fails.
. "$(dirname "$0")/lib.sh"
manifests=$source_dir/deploy/kubernetes
group=$source_dir/deploy/containers/forepack-group
choose_ports
probe_port=$(free_port)
spec_probe_port=$(free_port)

# options ROLE PROBE_PORT: the flags of ROLE.conf, with free ports on loopback and the models of the repository.
options() {
    sed -n 's/^\([a-z-]*\) = \(.*\)$/--\1=\2/p' "$manifests/overlays/demo-cpu/$1.conf" |
        sed -e "s#=/usr/share/forepack/demo-model#=$source_dir/deploy/demo-model#" -e "s#--http-port=.*#--http-port=$http_port#" \
            -e "s#--port=.*#--port=$port#" -e "s#--node-listen=.*#--node-listen=$node_server#" -e "s#--host=.*#--host=127.0.0.1#" \
            -e "s#--router=.*#--router=$node_server#" -e "s#--probe-listen=.*#--probe-listen=127.0.0.1:${2:-0}#"
}
# probes FILE: the paths of all probes over HTTP in a manifest.
probes() { sed -n 's/.*httpGet: {path: \([^,]*\), port: [a-z]*}.*/\1/p' "$manifests/base/$1" | sort -u; }
code_of() { curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$1$2" || true; }
answers() { [ "$(code_of "$1" "$2")" = "$3" ]; }
end() { # end PID NAME
    kill -TERM "$1"
    local code=0
    wait "$1" || code=$?
    equal 0 $code "exit code of the $2 after SIGTERM"
}

mapfile -t router_options < <(options router)
mapfile -t worker_options < <(options worker "$probe_port")
mapfile -t speculator_options < <(options speculator "$spec_probe_port")
for program in router worker speculator; do
    declare -n flags=${program}_options
    "$bin/forepack-$program" "${flags[@]}" --check-config >"$work/check" 2>&1 || fail "$program.conf: $(cat "$work/check")"
done

# Nodes come before the router. They are alive and not ready; so is the router without nodes.
start worker "$bin/forepack-worker" "${worker_options[@]}" --threads 1
worker_pid=$last_pid
wait_until 60 "the worker is alive" answers "$probe_port" /live 200
equal 503 "$(code_of "$probe_port" /ready)" "readiness of a worker without a router"
start router "$bin/forepack-router" "${router_options[@]}"
router_pid=$last_pid
start speculator "$bin/forepack-speculator" "${speculator_options[@]}" --threads 1
speculator_pid=$last_pid
for file in router worker speculator; do
    case $file in router) at=$http_port ;; worker) at=$probe_port ;; *) at=$spec_probe_port ;; esac
    equal 2 "$(probes $file.yaml | wc -l)" "paths of probes in $file.yaml"
    for path in $(probes $file.yaml) /metrics; do
        wait_until 60 "$file answers $path" answers "$at" "$path" 200
    done
done

# Without a worker group the router is alive but not ready. The Service for nodes must reach it all the same.
end $worker_pid worker
wait_until 30 "the router is not ready" answers "$http_port" /ready 503
equal 200 "$(code_of "$http_port" /health)" "health of a router without a worker group"

if command -v mpirun >/dev/null && grep -q mpirun <<<"$("$bin/forepack-worker" --help)"; then
    start group env RANKS_PER_POD=2 PROGRAM="$bin/forepack-worker" PROBE_PORT="$probe_port" TMPDIR=/tmp \
        "$group" "${worker_options[@]}" --threads 1
    group_pid=$last_pid
    ask_probe() { PROBE_PORT=$probe_port "$group" probe "$1" 2>/dev/null; }
    wait_until 120 "the group is ready" ask_probe /ready
    ask_probe /live || fail "the group is ready and not alive"
    ask_probe /nothing && fail "a path that does not exist counts as a right answer"
    for i in $(seq 8); do
        printf '{"id": "%d", "prompt": "The code of the house is", "max_tokens": 400, "ignore_eos": true}\n' "$i"
    done >"$work/rows.jsonl"
    start batch "$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/answers.jsonl" --temperature 0
    batch_pid=$last_pid
    wait_until 60 "requests run" status_is '([.nodes[] | select(.role == "worker") | .running] | add) == 8'
    end $group_pid group
    code=0
    wait $batch_pid || code=$?
    equal 0 $code "exit code of the batch"
    equal 8 "$(jq -c 'select(.error == null)' "$work/answers.jsonl" | wc -l)" "answers of requests during the drain"
    code=0
    RANKS_PER_POD=two "$group" 2>"$work/error" || code=$?
    equal 2 $code "a wrong number of ranks"
    grep -q 'RANKS_PER_POD=two' "$work/error" || fail "wrong reason: $(cat "$work/error")"
    code=0
    LWS_GROUP_SIZE=2 LWS_LEADER_ADDRESS=a-0.a PROGRAM=$bin/forepack-worker "$group" "${worker_options[@]}" 2>"$work/error" || code=$?
    equal 2 $code "a group of two pods without a cluster token"
    code=0
    LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 "$group" 2>"$work/error" || code=$?
    equal 2 $code "a second pod that does not know the first"
fi
end $speculator_pid speculator
end $router_pid router
