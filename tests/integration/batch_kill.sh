#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# batch_kill.sh [KILLS]: forepack batch is killed (SIGKILL) at random points, 10 by default, and started again: every row
# is answered exactly once, as in a run that was not killed.
. "$(dirname "$0")/lib.sh"

kills=${1:-10}
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}"
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
wait_until 60 "the worker is ready" ready
jq -cn 'range(200) | {id: "row \(.)", prompt: "Hello \(.)", max_tokens: 8, ignore_eos: true, seed: ., temperature: 1}' >"$work/in.jsonl"
batch=("$bin/forepack" batch --server "$server" --input "$work/in.jsonl")
sorted() { jq -cS '{id, token_ids, finish_reason}' "$1" | sort; }
begin=${EPOCHREALTIME/./}
"${batch[@]}" --output "$work/calm.jsonl" 2>"$work/calm.log"
run_us=$((${EPOCHREALTIME/./} - begin))
sorted "$work/calm.jsonl" >"$work/calm"
equal 200 "$(wc -l <"$work/calm")" "answers of the run that was not killed"

# A quarter of the points are drawn from the first tenth of a run: a resumed run begins by copying the earlier answers to
# a new file and renaming it.
random_delay() {
    local range=$((RANDOM % 4 ? run_us : run_us / 10))
    printf '%d.%06d' 0 $(((RANDOM << 15 | RANDOM) % (range < 999999 ? range : 999999)))
}
verify() {
    sorted "$work/out.jsonl" >"$work/out"
    cmp "$work/calm" "$work/out" || fail "answers after $killed kills differ: $(diff "$work/calm" "$work/out" | head -n 5)"
    files=("$work"/out.jsonl*)
    equal 1 ${#files[@]} "number of output files that remain: ${files[*]}"
    finished=$((finished + 1))
    rm "$work/out.jsonl"
}
killed=0 finished=0
while [ $killed -lt "$kills" ]; do
    "${batch[@]}" --output "$work/out.jsonl" 2>"$work/batch.log" &
    pid=$!
    sleep "$(random_delay)"
    kill -KILL $pid 2>/dev/null || true
    code=0
    wait $pid 2>/dev/null || code=$?
    case $code in
    0) verify ;;
    137) killed=$((killed + 1)) ;;
    *) fail "forepack batch ended with $code after $killed kills: $(cat "$work/batch.log")" ;;
    esac
done
if [ ! -e "$work/out.jsonl" ] || ! cmp -s "$work/calm" <(sorted "$work/out.jsonl"); then
    "${batch[@]}" --output "$work/out.jsonl" 2>"$work/batch.log"
fi
verify
echo "batch_kill: $killed kills; $finished runs finished, each with all 200 rows exactly once"
