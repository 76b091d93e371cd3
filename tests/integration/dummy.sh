#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A cluster without a checkpoint: random weights of a shape, and the demo model's tokenizer.
. "$(dirname "$0")/lib.sh"

jq '.vocab_size = 1536' "$source_dir/tests/data/shapes/tiny.json" >"$work/main.json"
jq '.num_hidden_layers = 1' "$work/main.json" >"$work/spec.json"
start_up --workers 2 --tp 1 --speculators 1 --shape "$work/main.json" --spec-shape "$work/spec.json" --speculate-min-tokens 64
equal 1 "$(status_json | jq '[.nodes[] | select(.role == "worker") | .model_fingerprint] | unique | length')" \
    "the models of the two groups are equal"
seq 100 >"$work/prompt"
generate --prompt-file "$work/prompt" --max-tokens 9 --ignore-eos --prefill on --keep-rate 0.5 >"$work/answer.json"
equal true "$(jq '(.token_ids | length) == 9 and .usage.kept_tokens < .usage.prompt_tokens' "$work/answer.json")" "answer"
wait_until 20 "every KV block is free" all_returned
stop_up

# A directory that has only config.json and tokenizer.json.
mkdir "$work/bare"
cp "$main_model/tokenizer.json" "$work/bare/"
cp "$work/main.json" "$work/bare/config.json"
main_model=$work/bare spec_model=$work/bare
start_up --load dummy --speculate-min-tokens 64 --no-enable-prefix-caching
generate --prompt "Hello" --max-tokens 3 --ignore-eos >"$work/answer.json"
equal 3 "$(jq '.token_ids | length' "$work/answer.json")" "tokens with random weights"

# The speculator is as large as the main model, so speculation never cuts TTFT. The cost model learns this from the first
# passes.
skipped_for_cost() {
    echo "$RANDOM" >>"$work/prompt" # a prompt whose selection is known costs no scoring
    generate --prompt-file "$work/prompt" --max-tokens 2 --ignore-eos --prefill auto --keep-rate 0.3 && status_is ".totals.prefill_skipped.cost > 0"
}
wait_until 20 "a prompt is prefilled whole because of the cost of speculation" skipped_for_cost
stop_up
echo "dummy: all passed"
