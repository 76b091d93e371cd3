#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forepack batch goes on if its router is killed and started again; if it gives up, it says how to continue; two runs
# do not write one output; what it has written is synced; and an aborted row is sent again.
. "$(dirname "$0")/lib.sh"

choose_ports
start_router() { start router "$bin/forepack-router" --model "$main_model" "${listen[@]}"; router_pid=$last_pid; }
router_has() { status_is ".queue.waiting + .queue.running == $1"; }
kill_router() { kill -KILL "$router_pid" && wait "$router_pid" 2>/dev/null || true; }
start_router
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --max-num-seqs 2
worker_pid=$last_pid
wait_until 60 "the worker is ready" ready

# Two short answers, then ten that take much longer than finding out that the first two have arrived.
jq -cn 'range(12) | {id: "row \(.)", prompt: "Hello \(.)", max_tokens: (if . < 2 then 10 else 200 end), ignore_eos: true, seed: ., temperature: 1}' >"$work/in.jsonl"
asking=("$bin/forepack" batch --server "$server" --input "$work/in.jsonl")
sorted() { jq -cS '{id, token_ids, finish_reason}' "$1" | sort; }
# Before the first answer the new output and its folder are synced, at the end the answers.
sanitized() { grep -qE 'lib(a|t)san' <<<"$(ldd "$bin/forepack")"; }
if sanitized; then
    "${asking[@]}" --output "$work/calm.jsonl" 2>"$work/calm.log"
else
    # LD_PRELOAD divides paths at blanks, so the folder has a variable of its own.
    LD_LIBRARY_PATH=$bin LD_PRELOAD=fsync_log.so FSYNC_LOG=$work/synced "${asking[@]}" --output "$work/calm.jsonl" 2>"$work/calm.log"
    equal "$work/calm.jsonl.part
$work
$work/calm.jsonl" "$(cat "$work/synced")" "files that were synced"
fi
answered() { [ "$(grep -c . "$work/out.jsonl")" -ge "$1" ]; }

# An input of any size: two rows of 40 MiB, almost all of it a key that is ignored, in the memory of a few lines.
for i in 1 2; do
    printf '{"id":"large %d","prompt":"Hello","max_tokens":1,"note":"' $i
    head -c $((40 << 20)) /dev/zero | tr '\0' x
    printf '"}\n'
done >"$work/large.in"
"$bin/forepack" batch --server "$server" --input "$work/large.in" --output "$work/large.out" 2>"$work/large.log"
equal '"large 1" "large 2"' "$(jq .id "$work/large.out" | sort | xargs -d '\n')" "answers of a large input"
rm "$work/large.in"

# Two runs.
kill -STOP "$worker_pid"
start first "${asking[@]}" --output "$work/out.jsonl"
batch_pid=$last_pid
wait_until 30 "its output exists" test -e "$work/out.jsonl"
code=0
"${asking[@]}" --output "$work/out.jsonl" 2>"$work/second.log" || code=$?
equal 2 "$code" "exit code of a second run"
grep -q "another forepack batch is writing it" "$work/second.log" || fail "the second run says $(cat "$work/second.log")"

# The router is killed before it has sent anything, and with answers outstanding, and starts again.
wait_until 30 "the router has the rows" router_has 12
kill_router
start_router
kill -CONT "$worker_pid"
wait_until 30 "some rows are answered" answered 2
kill -STOP "$worker_pid"
kill_router
start_router
kill -CONT "$worker_pid"
wait "$batch_pid" || fail "the batch failed when the router was started again"
equal "$(sorted "$work/calm.jsonl")" "$(sorted "$work/out.jsonl")" "answers over a restart of the router"
equal 2 "$(grep -c "trying again for up to 300 s" "$work/first.log")" "lines about the lost router"

# The batch gives up, and a second run continues. The limit of 1 s counts from the loss of the router, not from the last answer.
rm "$work/out.jsonl"
start third "${asking[@]}" --output "$work/out.jsonl" --reconnect-s 1
batch_pid=$last_pid
wait_until 30 "some rows are answered" answered 2
kill -STOP "$worker_pid"
uptime=$(status_json | jq .uptime_s)
wait_until 30 "--reconnect-s has passed" status_is ".uptime_s >= $uptime + 3"
kill_router
code=0
wait "$batch_pid" || code=$?
equal 1 "$code" "exit code of a batch that gives up"
equal 1 "$(grep -c "trying again for up to 1 s" "$work/third.log")" "lines about the lost router of a batch that gives up"
grep -q "[0-9]* of 12 rows are answered in .*out.jsonl: the same command again continues" "$work/third.log" || fail "the batch does not say how to continue"
start_router
kill -CONT "$worker_pid"
wait_until 60 "the worker is back" ready
"${asking[@]}" --output "$work/out.jsonl" 2>"$work/fourth.log"
grep -q "^[1-9][0-9]* of 12 rows already have an answer" "$work/fourth.log" || fail "the second run started anew"
equal "$(sorted "$work/calm.jsonl")" "$(sorted "$work/out.jsonl")" "answers of two runs"

# An aborted row has no answer: the batch fails, and a second run sends the row again.
head -n 1 "$work/in.jsonl" >"$work/one.jsonl"
one=("$bin/forepack" batch --server "$server" --input "$work/one.jsonl" --output "$work/aborted.jsonl")
kill -STOP "$worker_pid"
start fifth "${one[@]}"
batch_pid=$last_pid
wait_until 30 "the router has the row" router_has 1
request_id=$(sed -n 's/.*request_received .*client_id=\([^ ]*\).*/\1/p' "$work/router.log" | tail -n 1)
PYTHONPATH=$source_dir/tests/integration /usr/bin/python3 -c 'import abort, sys; abort.abort(*sys.argv[1:])' "$server" "$request_id"
code=0
wait "$batch_pid" || code=$?
equal '1 "cancelled"' "$code $(jq .finish_reason "$work/aborted.jsonl")" "exit code and answer of a batch whose row was aborted"
grep -q "row 0: the request was aborted" "$work/fifth.log" || fail "the batch does not name the aborted row"
kill -CONT "$worker_pid"
"${one[@]}" 2>"$work/sixth.log"
equal "$(sorted "$work/calm.jsonl" | grep '"row 0"')" "$(sorted "$work/aborted.jsonl")" "answer of the row that was aborted"

# A router that serves nothing: the batch gives up once, and no row has an answer.
kill -KILL "$worker_pid"
kill_router
start_router
wait_until 30 "the router answers" status_json
jq -cn 'range(20) | {id: "row \(.)", prompt: "Hello"}' >"$work/in.jsonl"
code=0
"${asking[@]}" --output "$work/unserved.jsonl" --reconnect-s 1 2>"$work/seventh.log" || code=$?
equal "1 0" "$code $(wc -l <"$work/unserved.jsonl")" "exit code and answers of a batch that nothing serves"
grep -q "no worker group is attached" "$work/seventh.log" || fail "the batch does not say why it gives up"
grep -q "0 of 20 rows are answered" "$work/seventh.log" || fail "the batch does not say that it continues"
echo "batch: all passed"
