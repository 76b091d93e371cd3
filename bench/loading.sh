#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what a start costs with real files, and the share of what the disk and the cores allow. One run reads the
# files with a cold page cache, loads them with a warm one (the cores alone), and loads them with a cold one.
#
#     bench/checkpoint.py bench/shapes/llama-3.2-1b.json DIR
#     bench/loading.sh BUILD DIR [OPTIONS OF forepack-worker]
#
# The bound is the longer of two times: that of reading alone, and that of the warm load.
set -euo pipefail
bin=${1:?} model=${2:?}
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Removes the files of the model from the page cache, and prints the time in ms to read them if asked.
files() {
    python3 - "$model" "$1" <<'EOF'
import os, sys, threading, time
paths = [os.path.join(sys.argv[1], n) for n in os.listdir(sys.argv[1]) if n.endswith(".safetensors")]
files = [os.open(path, os.O_RDONLY) for path in paths]
for file in files:
    os.fdatasync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
chunk = 4 << 20
places = iter([(f, at) for f in files for at in range(0, os.fstat(f).st_size, chunk)])
lock = threading.Lock()
def read():
    buffer = bytearray(chunk)
    while True:
        with lock:
            place = next(places, None)
        if not place:
            return
        os.preadv(place[0], [buffer], place[1])
if sys.argv[2] == "read":
    begun = time.monotonic()
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(round(1000 * (time.monotonic() - begun)))
EOF
}

# Prints a field of the event model_opened of one load.
load() {
    "$bin/forepack-worker" --model "$model" --router 127.0.0.1:9 --max-model-len 2048 --max-num-seqs 4 "$@" 2>"$log" &
    local pid=$!
    until grep -q node_ready "$log"; do kill -0 $pid 2>/dev/null || { cat "$log" >&2; exit 1; }; sleep 0.05; done
    kill -TERM $pid
    wait $pid || true
    grep model_opened "$log" | grep -o 'weights_ms=[0-9]*\|open_ms=[0-9]*\|finish_ms=[0-9]*' | tr '\n' ' '
}
weights_ms() { grep -o 'weights_ms=[0-9]*' <<<"$1" | cut -d= -f2; }

files drop
read_ms=$(files read)
warm=$(load "$@")
files drop
cold=$(load "$@")
cores_ms=$(weights_ms "$warm") cold_ms=$(weights_ms "$cold")
bound_ms=$((read_ms > cores_ms ? read_ms : cores_ms))
bytes=$(cat "$model"/*.safetensors | wc -c)
echo "reading alone, cold      $read_ms ms, $((bytes / 1000 / (read_ms + 1))) MB/s"
echo "packing alone, warm      $cores_ms ms, $((bytes / 1000 / (cores_ms + 1))) MB/s   ($warm)"
echo "reading and packing      $cold_ms ms, $((bytes / 1000 / (cold_ms + 1))) MB/s   ($cold)"
echo "share of the bound       $((100 * bound_ms / cold_ms)) %"
