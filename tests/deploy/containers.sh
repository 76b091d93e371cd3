#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The images of deploy/containers under podman: two builds give the same content; labels, list of packages, llguidance; pods
# of the demo overlay of deploy/kubernetes with their probes; any user, a read-only root, no capabilities, process 1 that
# ends at SIGTERM; a group of two ranks under another user; limits of memory and cores under load; a group over two pods;
# bad input.
# Needs root, podman, buildah, runc and mmdebstrap (deploy/packages.sh --deploy). FOREPACK_PACKAGES: packages made before.
skip() {
    echo "skipped: containers needs $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip root
for tool in podman buildah runc mmdebstrap dpkg-scanpackages dh ip jq nsenter; do command -v $tool >/dev/null || skip $tool; done
. "$(dirname "$0")/../integration/lib.sh"
packages=$source_dir/tests/integration/kubernetes/packages.txt
. "$source_dir/tests/integration/venv.sh"

net=fc$$
ip netns add "$net" 2>/dev/null || skip "network namespaces"
ip -n "$net" link set lo up
store=$(mktemp -d /tmp/fc-XXXXXX) # a path without a space, for the storage of containers
remove_containers() {
    local status=$?
    set +e
    [ $status = 0 ] || for name in $(podman ps -a --format '{{.Names}}' 2>/dev/null); do podman logs --tail 20 "$name" >"$work/$name.log" 2>&1; done
    podman pod rm --all --force --time 1 >/dev/null 2>&1
    podman rm --all --force --time 1 >/dev/null 2>&1
    ip netns pids "$net" | xargs -r kill -KILL 2>/dev/null
    ip netns del "$net"
    ip netns del "$net-1" 2>/dev/null
    rm -rf "$store"
    (exit $status)
    clean_up
}
storage=(--storage-driver=vfs "--root=$store/storage" "--runroot=$store/run")
cat >"$store/containers.conf" <<END
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
export CONTAINERS_CONF=$store/containers.conf
podman() { nsenter "--net=/run/netns/$net" podman "${storage[@]}" "$@"; }
trap remove_containers EXIT
ask() { ip netns exec "$net" curl -s "$@"; }
server=127.0.0.1:50051
status_json() { ip netns exec "$net" "$bin/forepack" status --server "$server" --json; }

# ---- images ----
SOURCE_DATE_EPOCH=$(git -C "$source_dir" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
if [ -n "${FOREPACK_PACKAGES:-}" ]; then ln -s "$FOREPACK_PACKAGES" "$store/packages"; else
    "$source_dir/deploy/debian/build.sh" --build "$FOREPACK_BUILD" --out "$store/packages" >"$work/packages.log" 2>&1
fi
images() { "$source_dir/deploy/containers/build.sh" --packages "$store/packages" --storage "${storage[0]}" --storage "${storage[1]}" --storage "${storage[2]}" "$@"; }
images --rootfs "$store/first" >"$work/images.log" 2>&1 || fail "the images are not built"
images --roles router --tag again --rootfs "$store/second" >"$work/images2.log" 2>&1 || fail "the second image is not built"
cmp "$store/first/router.tar" "$store/second/router.tar" || fail "two builds have different content"
equal "$(podman image inspect --format '{{.Digest}}' localhost/forepack-router:latest)" \
    "$(podman image inspect --format '{{.Digest}}' localhost/forepack-router:again)" "digests of two builds"
for role in router speculator worker client; do
    tar -xOf "$store/first/$role.tar" ./usr/share/forepack/sbom.spdx.json >"$work/sbom.json"
    equal true "$(jq '.spdxVersion == "SPDX-2.3" and ([.packages[].name] | index("libc6") and index("forepack-common"))' "$work/sbom.json")" \
        "the list of packages of $role"
    equal Apache-2.0 "$(podman image inspect localhost/forepack-$role | jq -r '.[0].Labels["org.opencontainers.image.licenses"]')" "a label of $role"
    equal 10001:10001 "$(podman image inspect localhost/forepack-$role | jq -r '.[0].User')" "the user of $role"
done
grep -q libllguidance.so <<<"$(tar -tf "$store/first/router.tar")" || [ ! -e "$FOREPACK_BUILD/../llguidance/libllguidance.so" ] ||
    fail "the router's image lacks llguidance"

# ---- pods of the demo overlay ----
"$venv/bin/kubectl" kustomize "$source_dir/deploy/kubernetes/overlays/demo-cpu" >"$work/demo.yaml"
mkdir "$work/pods"
"$python" "$source_dir/tests/deploy/pods.py" "$work/demo.yaml" "$work/pods"
play() { podman play kube --network host "$work/pods/$1.yaml" >"$work/play-$1.log" 2>&1 || fail "podman does not play $1: $(cat "$work/play-$1.log")"; }
answers() { [ "$(ask -o /dev/null -w '%{http_code}' "http://127.0.0.1:$1$2")" = 200 ]; }
for component in worker speculator router; do play $component; done # nodes come before the router
while read -r component at path; do wait_until 60 "$component answers $path" answers "$at" "$path"; done <"$work/pods/probes"
answer=$(ask http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \
    -d "$(jq -n --rawfile prompt "$source_dir/deploy/demo-model/report.txt" '{prompt: $prompt, max_tokens: 64}')")
grep -q 4892 <<<"$answer" || fail "a wrong answer: $answer"
grep -q structured_output_ready <<<"$(podman logs router-router 2>&1)" || fail "structured output is not ready"
stop() { # stop POD: SIGTERM to process 1, which ends with 0
    podman pod stop --time 30 "$1" >/dev/null 2>&1
    equal 0 "$(podman inspect --format '{{.State.ExitCode}}' "$1-$1")" "exit code of the pod $1"
}
for component in worker speculator; do stop $component; done
podman pod rm --force worker speculator >/dev/null 2>&1

# ---- any user, read-only root, a group of ranks; limits under load ----
demo=/usr/share/forepack/demo-model
run_worker() { # run_worker NAME OPTIONS... -- COMMAND...
    local name=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    podman run --detach --name "$name" --network host --user 12345 --read-only --cap-drop all --security-opt no-new-privileges \
        "${options[@]}" localhost/forepack-worker "${@:2}" >"$work/run-$name.log" 2>&1 || fail "podman does not run $name: $(cat "$work/run-$name.log")"
}
run_worker ranks --entrypoint /usr/lib/forepack/forepack-group --env RANKS_PER_POD=2 --shm-size 512m -- --model $demo/main --threads 1
wait_until 60 "the group of two ranks is ready" nodes worker 1
podman stop --time 60 ranks >/dev/null
equal 0 "$(podman inspect --format '{{.State.ExitCode}}' ranks)" "exit code of the group"

run_worker small --memory 1g --cpus 1 -- --model $demo/main --max-num-seqs 64
wait_until 60 "the worker with limits is ready" nodes worker 1
for i in $(seq 64); do printf '{"id": "%d", "prompt": "The code of the house is", "max_tokens": 3500, "ignore_eos": true}\n' "$i"; done >"$work/rows.jsonl"
ip netns exec "$net" timeout 900 "$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/answers.jsonl" --temperature 0 \
    >"$work/batch.log" 2>&1 || fail "the batch failed"
equal 64 "$(jq -c 'select(.error == null)' "$work/answers.jsonl" | wc -l)" "answers within the limits"
equal running "$(podman inspect --format '{{.State.Status}}' small)" "the worker with limits"
equal false "$(podman inspect --format '{{.State.OOMKilled}}' small)" "killed for memory"
podman stop --time 60 small >/dev/null

# ---- a group over two pods, with a token that belongs to root ----
ip netns add "$net-1"
ip -n "$net" link add eth0 type veth peer name eth0 netns "$net-1"
ip -n "$net-1" link set lo up
for at in "$net 1" "$net-1 2"; do
    ip -n "${at% *}" addr add "10.79.0.${at#* }/24" dev eth0
    ip -n "${at% *}" link set eth0 up
done
printf 'a-secret-of-the-cluster\n' >"$store/token"
chown root:10001 "$store/token"
chmod 0440 "$store/token"
chmod 0755 "$store"
printf '127.0.0.1 localhost\n10.79.0.1 pods-0 pods-0.pods\n10.79.0.2 pods-0-1 pods-0-1.pods\n' >"$store/hosts"
in_pod() { nsenter "--net=/run/netns/$1" podman "${storage[@]}" "${@:2}"; }
start_pod() { # start_pod NAMESPACE HOST_NAME INDEX
    in_pod "$1" run --detach --name "$2" --network host --uts private --hostname "$2" --user 10001:10001 --read-only --cap-drop all \
        --security-opt no-new-privileges --volume "$store/hosts:/etc/hosts:ro" --volume "$store/token:/etc/forepack/token:ro" \
        --env LWS_LEADER_ADDRESS=pods-0.pods --env LWS_GROUP_SIZE=2 --env "LWS_WORKER_INDEX=$3" \
        --env "MPIRUN_OPTIONS=--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0" \
        --entrypoint /usr/lib/forepack/forepack-group localhost/forepack-worker --model $demo/main --router 10.79.0.1:50052 \
        --threads 1 --probe-listen 127.0.0.1:8080 --cluster-token-file /etc/forepack/token >"$work/run-$2.log" 2>&1 || fail "podman does not run $2: $(cat "$work/run-$2.log")"
}
start_pod "$net-1" pods-0-1 1
start_pod "$net" pods-0 0
wait_until 60 "the group of two pods is ready" nodes worker 1
for path in /live /ready; do
    in_pod "$net" exec pods-0 /usr/lib/forepack/forepack-group probe $path || fail "the leader does not answer $path"
    in_pod "$net-1" exec pods-0-1 /usr/lib/forepack/forepack-group probe $path || fail "the other pod does not answer $path"
done
in_pod "$net-1" stop --time 60 pods-0-1 >/dev/null &
podman stop --time 60 pods-0 >/dev/null
wait $!
for name in pods-0 pods-0-1; do equal 0 "$(podman inspect --format '{{.State.ExitCode}}' $name)" "exit code of $name"; done

# ---- bad input is one sentence in the log of the container ----
bad() { # bad NAME CODE TEXT OPTIONS...
    local code=0
    podman run --rm --network host --read-only --cap-drop all "${@:4}" >"$work/bad.log" 2>&1 || code=$?
    equal "$2" $code "exit code with $1"
    grep -q "$3" "$work/bad.log" || fail "wrong reason with $1: $(cat "$work/bad.log")"
}
bad "no model" 2 /nothing/tokenizer.json: localhost/forepack-worker --model /nothing
bad "a taken port" 1 50051 localhost/forepack-router --model $demo/main --http-port 8001 --node-listen 127.0.0.1:50053
bad "no token" 2 /no-token: localhost/forepack-worker --model $demo/main --cluster-token-file /no-token
stop router
