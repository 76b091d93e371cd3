#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Speculators draft answers while a worker group generates them: the tokens are the same with and without drafts, greedy
# and sampled, with pruned and with whole prompts, and when speculators are killed meanwhile. The speculators run the main
# model, so that many draft tokens are right.
. "$(dirname "$0")/lib.sh"

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 500 --score-timeout-ms 600000 \
    --selection-cache-mib 0
start_node() { # start_node ROLE ID FLAGS...
    local role=$1 id=$2
    shift 2
    start "$id" "$bin/forepack-$role" --model "$main_model" --router "$node_server" --node-id "$id" --threads 1 "$@"
}
start_node worker worker-0 --max-num-seqs 1 # a full group verifies drafts, too
start_node speculator spec-0
first_spec=$last_pid
start_node speculator spec-1
wait_until 60 "the cluster is ready" ready
wait_until 60 "the speculators are there" nodes speculator 2

# Greedy and sampled rows, of pruned and of whole prompts.
head -n 3 "$prompts" | jq -c '. as $row | range(2) as $s | ["on", "off"][] as $p | {id: "\($row.id)-\($s)-\($p)",
    prompt: $row.prompt, prefill: $p, keep_rate: 0.5, temperature: (0.8 * $s), seed: (7 + $s), repetition_penalty: (1 + 0.1 * $s)}' \
    >"$work/rows.jsonl"
rows=$(wc -l <"$work/rows.jsonl")
batch() { # batch NAME FLAGS...
    "$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/$1.jsonl" --ignore-eos --max-tokens 48 \
        "${@:2}" 2>"$work/batch.log"
}
tokens() { jq -cS '{id, token_ids, finish_reason}' "$work/$1.jsonl" | sort; }
accepted() { status_json | jq .totals.draft_accepted_tokens; }

batch off --drafts off
equal 0 "$(accepted)" "tokens accepted without drafts"
batch auto --drafts auto
equal "$rows" "$(wc -l <"$work/auto.jsonl")" "rows with drafts"
equal "$(tokens off)" "$(tokens auto)" "answers with drafts"

[ "$(accepted)" -gt 0 ] || fail "no draft token was accepted"

# One speculator dies and one is stopped while they draft: drafts end, answers do not.
killer() {
    wait_until 60 "requests run" status_is ".queue.running > 0"
    kill -KILL "$first_spec"
    kill -STOP "$last_pid"
}
killer &
killer_pid=$!
batch killed --drafts auto
wait "$killer_pid" || fail "the speculators were not killed"
whole() { tokens "$1" | jq -c 'select(.id | endswith("-off"))'; }
equal "$(whole off)" "$(whole killed)" "answers of whole prompts without speculators"
equal "$rows" "$(wc -l <"$work/killed.jsonl")" "rows without speculators"
kill -CONT "$last_pid"
wait_until 60 "every KV block is free" all_returned
held_none() { status_is '[.nodes[] | select(.role == "speculator") | .held_prompts + .held_kv_blocks] | add == 0'; }
wait_until 60 "no prompt is held any more" held_none
