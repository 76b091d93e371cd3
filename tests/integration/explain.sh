#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forepack explain: the numbers and names that it gives are those of the cluster, in each prefill mode, and requests that
# shared a bin are counted. The HTTP API gives the same. Who may see nodes is in identity.sh.
. "$(dirname "$0")/lib.sh"

start_up --threads 1 --worker-option node-id=heavy --speculator-option node-id=reader
cp "$source_dir/deploy/demo-model/report.txt" "$work/report.txt"
explain() { "$bin/forepack" explain --server "$server" "$@"; }
is() { jq -e "$1" "$work/answer" >/dev/null || fail "not $1: $(cat "$work/answer")"; }

explain --prompt-file "$work/report.txt" --prefill on --keep-rate 0.3 --json >"$work/answer"
is '.stages.mode == "on" and .stages.keep_rate == 0.3 and .stages.limited == false'
is '.stages.score == {"node_id": "reader", "bin_requests": 1, "bin_rows": .usage.scored_tokens, "token_budget": 2048, "wait": "", "waiting": 0}'
is '.stages.prefill.node_id == "heavy" and .stages.prefill.bin_rows == .usage.kept_tokens and .stages.prefill.bin_requests == 1'
is '.usage.kept_tokens < .usage.prompt_tokens / 2 and .text != ""'

# Over HTTP the field "explain" gives the same to each API: whole answers, and the last event of a stream with it.
post() { jq -c "$2" <<<'{"max_tokens": 2, "keep_rate": 0.3, "prefill": "on", "explain": true}' | curl -s "http://127.0.0.1:$http_port$1" -d @-; }
explained() {
    post "$1" "$2" | sed -n 's/^data: //; /^{/p' | jq -c '.. | .explain? // empty | objects' >"$work/answer"
    equal 1 "$(wc -l <"$work/answer")" "explanations of $1: $(post "$1" "$2")"
    is '.stages.mode == "on" and .stages.keep_rate == 0.3 and .stages.limited == false and .stages.prefill.node_id == "heavy"'
    is '.stages.prefill.bin_requests == 1 and .stages.score.node_id == "reader" and .stages.score.wait == ""'
    is '.timing.ttft_ms > 0 and .timing.total_ms >= .timing.ttft_ms and .timing.score_ms > 0'
}
text="\"$(seq -s ' ' 300)\""
for stream in false true; do
    explained /v1/completions ". + {stream: $stream, prompt: (\"1 $stream\" + $text)}"
    explained /v1/chat/completions ". + {stream: $stream, messages: [{role: \"user\", content: (\"2 $stream\" + $text)}]}"
    explained /v1/messages ". + {stream: $stream, messages: [{role: \"user\", content: (\"3 $stream\" + $text)}]}"
    explained /v1/responses "del(.max_tokens) + {max_output_tokens: 2, stream: $stream, input: (\"4 $stream\" + $text)}"
done
post /v1/completions '. + {prompt: "Hi", explain: false}' >"$work/answer"
is 'has("usage") and (has("explain") | not)'
post /v1/completions '. + {prompt: "Hi", explain: 1}' >"$work/answer"
is '.error.message == "explain: must be true or false"'

# The router holds the score of the same prompt. Without pruning, the time of the whole prompt is predicted.
explain --prompt-file "$work/report.txt" --prefill on --keep-rate 0.3 --json >"$work/answer"
is '(.stages | has("score") | not) and .usage.score_cached_tokens == .usage.scored_tokens'
for n in 100 200 400; do explain --prompt "$(seq 1 $n)" --prefill off --max-tokens 1 --json >"$work/answer"; done
is '.stages.mode == "off" and (.stages | has("score") | not) and .timing.predicted_whole_ms > 0'
explain --prefill off - <"$work/report.txt" >"$work/lines"
equal 9 "$(wc -l <"$work/lines")" "lines of a whole prompt: $(cat "$work/lines")"
grep -q '^kept  *975 of 975 tokens: pruning is off' "$work/lines" || fail "no reason: $(cat "$work/lines")"
grep -q '^whole  *the first token was predicted after [0-9.]* ms' "$work/lines" || fail "no prediction: $(cat "$work/lines")"
generate --prompt Hi --max-tokens 1 | jq -e 'has("stages") | not' >/dev/null || fail "generate got stages"

# Requests that come while the worker group is busy share a bin. The group is stopped, so that all of them come then.
worker=$(pgrep -P "$up_pid" -f 'forepack-worker') || fail "no worker"
kill -STOP "$worker"
start first "$bin/forepack" generate --server "$server" --prompt 'before all' --prefill off --max-tokens 1
first=$last_pid
wait_until 20 "the first request is on the worker group" status_is '.queue.running == 1'
for i in 1 2 3 4 5 6; do jq -nc "{id: \"r$i\", prompt: \"number $i\", prefill: \"off\", explain: true, max_tokens: 1}"; done >"$work/rows.jsonl"
start batch "$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/out.jsonl"
batch=$last_pid
wait_until 20 "all requests came" status_is '.queue.waiting + .queue.running == 7'
kill -CONT "$worker"
wait "$first" || fail "the first request failed"
wait "$batch" || fail "the batch failed"
jq -s . "$work/out.jsonl" >"$work/answer"
is 'length == 6 and all(.[]; .stages.prefill.node_id == "heavy" and (.stages.prefill.wait | IN("busy", "room", "queue")))'
is '[.[].stages.prefill.bin_requests] | max > 1 and add >= 6'
is '[.[].stages.prefill.waiting] | max >= 1'
stop_up
