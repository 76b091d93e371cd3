#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Files and batches over HTTP: tenants, names, bad input, large files in bounded memory, a batch whose router is killed
# (SIGKILL) and started again, a cancelled batch, and a batch without room for its answers.
. "$(dirname "$0")/lib.sh"

keys=$work/keys
for tenant in acme globex; do
    (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$tenant-1" --tenant "$tenant" >"$work/$tenant.key" 2>/dev/null)
done
choose_ports
url=http://127.0.0.1:$http_port
client() { (cd "$work" && python3 "$source_dir/tests/integration/batches_client.py" "$url" "$@"); }
serves() { curl -fs "$url/ready"; }
alive() { curl -fs "$url/health"; }
start_router() { # start_router FLAGS...
    start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys" "$@"
    router=$last_pid
    wait_until 60 "the router listens" alive
}
stop_router() { # stop_router SIGNAL
    kill "-$1" "$router"
    wait "$router" || true
}

start_router
client without
stop_router TERM

start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
start_router --batch-dir "$work/batches"
if "$bin/forepack-router" --model "$main_model" --port 0 --http-port 0 --node-listen 127.0.0.1:0 --batch-dir "$work/batches" \
    2>"$work/second.log"; then fail "two routers use one folder"; fi
grep -q "another router uses it" "$work/second.log" || fail "no reason why the second router ended"
client files
client bad_input

# A large file passes in pieces: the router's memory does not grow with it.
peak_kib() { awk '/^VmHWM/ {print $2}' "/proc/$router/status"; }
before=$(peak_kib)
seq 1 30000000 >"$work/large"
own=(curl -fsS -H "Authorization: Bearer $(cat "$work/acme.key")")
id=$("${own[@]}" -F purpose=user_data -F "file=@\"$work/large\"" "$url/v1/files" | jq -r .id)
for _ in 1 2 3; do
    "${own[@]}" "$url/v1/files/$id/content" | cmp "$work/large" || fail "the content of the large file differs"
done
rm "$work/large"
grown=$((($(peak_kib) - before) >> 10))
[ $grown -lt 64 ] || fail "the router's memory grew by $grown MiB with a file of 247 MiB"

wait_until 60 "a request would be served" serves
client begin
stop_router KILL
start_router --batch-dir "$work/batches"
client end
client begin
stop_router TERM # a drained router stops its batches, and continues them as well
start_router --batch-dir "$work/batches"
client end
client begin
stop_router TERM
record=$work/batches/batches/$(cat "$work/batch").json
jq -c '.expires_at = 1' "$record" >"$work/record" && cat "$work/record" >"$record"
start_router --batch-dir "$work/batches"
client expired
client endpoints
client cancel
stop_router TERM
unexpected=$(find "$work/batches" -type f | grep -vE '/(lock|files/file-[0-9a-f]{32}(\.json)?|batches/batch_[0-9a-f]{32}\.json)$') || true
equal "" "$unexpected" "files that remain"

start_router --batch-dir "$work/small" --batch-tenant-mb 1
wait_until 60 "a request would be served" serves
client full
stop_router TERM

# A real disk that is full.
mkdir "$work/disk"
if mount -t tmpfs -o size=2m tmpfs "$work/disk" 2>/dev/null; then
    trap 'umount -l "$work/disk"; clean_up' EXIT
    start_router --batch-dir "$work/disk"
    wait_until 60 "a request would be served" serves
    client disk_full
    stop_router TERM
else
    echo "skipped: a full disk, which needs root for a small file system; check_batch_runner limits the size of a file"
fi
echo "batches: passed"
