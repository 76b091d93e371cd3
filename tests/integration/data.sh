#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real weights and real prompts: a router, two speculators and two worker groups of two ranks each answer 1,000 prompts.
. "$(dirname "$0")/lib.sh"

data=${FOREPACK_DATA:-}
if [ ! -d "$data/models/stories260K" ] || [ ! -f "$data/prompts/alpaca.jsonl" ]; then
    echo "skipped: no test data in '$data'"
    exit 77
fi

# Prompts that are too long for the model are refused one by one; all other prompts are answered.
start_up --main "$data/models/stories260K" --spec "$data/models/stories280K" --workers 2 --tp 2 --speculators 2 \
    --spec-tp 2 --speculate-min-tokens 64 --log-level warn
code=0
"$bin/forepack" batch --server "$server" --input "$data/prompts/alpaca.jsonl" --output "$work/alpaca.jsonl" \
    --max-tokens 16 --prefill on 2>"$work/batch.log" || code=$?
equal "$(wc -l <"$data/prompts/alpaca.jsonl")" "$(wc -l <"$work/alpaca.jsonl")" "rows answered"
equal "" "$(jq -r 'select(.finish_reason == "error" and .error.code != 11) | .error.message' "$work/alpaca.jsonl")" \
    "errors other than a prompt over the context"
refused=$(jq -s 'map(select(.finish_reason == "error")) | length' "$work/alpaca.jsonl")
echo "answered $(($(wc -l <"$work/alpaca.jsonl") - refused)), over the context of 512: $refused"
[ "$refused" -lt 200 ] || fail "$refused of 1000 prompts were refused"
equal true "$(status_json | jq '.totals.replays == 0 and .totals.failed == 0 and (.totals.kept_tokens < .totals.prompt_tokens)')" "totals"
wait_until 20 "every KV block is free" all_returned

# Every model of the golden vectors continues its stories as it should, through the cluster.
stop_up
for model in stories260K stories260K-grown tinystories656K tinystories656K-bf16; do
    [ -d "$data/models/$model" ] || continue
    golden=${model%-grown}
    [ "$model" != tinystories656K-bf16 ] || continue # bf16 activations may differ; check_golden has bounds for them
    start_up --main "$data/models/$model" --speculators 0 --tp 2 --log-level warn
    jq -c '.greedy | to_entries[] | {id: "g\(.key)", token_ids: .value.prompt_ids, max_tokens: 60, ignore_eos: true}' \
        "$data/golden/$golden/cases.json" >"$work/greedy.jsonl"
    rm -f "$work/greedy-out.jsonl"
    "$bin/forepack" batch --server "$server" --input "$work/greedy.jsonl" --output "$work/greedy-out.jsonl" 2>/dev/null
    equal "$(jq -c '[.greedy[].generated_ids]' "$data/golden/$golden/cases.json")" \
        "$(jq -cs 'sort_by(.id) | map(.token_ids)' "$work/greedy-out.jsonl")" "greedy tokens of $model"
    stop_up
done
echo "data: all passed"
