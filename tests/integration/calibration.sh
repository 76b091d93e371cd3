#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A calibration from a few documents and chats, the keep rate that it gives a request with a quality, and the refusal of one that
# was made for another pair.
. "$(dirname "$0")/lib.sh"

"$bin/forepack" bench documents --model "$main_model" --task needle --form mixed --seed 1900 --tokens 300 --count 48 \
    --token-ids >"$work/rows_of_both_forms.jsonl"
# Turns documents of the chat form into messages, which the chat template renders to the same prompt.
jq -c 'if .form == "plain" then . else {task, answer, messages: (.prompt | split("<|im_start|>")[1:-1] | map(split("\n")
    | {role: .[0], content: (.[1:] | join("\n") | rtrimstr("\n") | rtrimstr("<|im_end|>"))}))} end' \
    "$work/rows_of_both_forms.jsonl" >"$work/documents.jsonl"
[ "$(grep -c '"messages"' "$work/documents.jsonl")" -ge 10 ] || fail "too few chats"

refused() { # SENTENCE ROW [OPTION...]: the row, or the options, are refused with the sentence before any model is loaded
    local sentence=$1 code=0
    printf '%s\n' "$2" >"$work/rows.jsonl"
    "$bin/forepack" calibrate --model "$main_model" --spec "$spec_model" --prompts "$work/rows.jsonl" "${@:3}" \
        >"$work/rows.log" 2>&1 || code=$?
    equal 2 "$code" "exit code for: $sentence"
    grep -qF "$sentence" "$work/rows.log" || fail "no sentence '$sentence'"
}
row='{"messages": [{"role": "user", "content": "Hello"}]}'
refused 'line 1: not valid JSON' '{'
refused 'line 1: must have a prompt, token_ids or messages' '{"task": "needle"}'
refused 'line 1: messages: not allowed together with prompt or token_ids' '{"prompt": "a", "messages": []}'
refused 'line 1: messages: there must be at least one' '{"messages": []}'
refused 'line 1: messages[0].role: must be a string' '{"messages": [{"content": "Hello"}]}'
refused 'line 1: token_ids[1]: must be the id of a token of the model' '{"token_ids": [3, 99999]}'
refused "$work/none/calibration.json: could not be written: No such file" "$row" --output "$work/none/calibration.json"
refused '/dev/null: not a regular file' "$row" --output /dev/null

cp -r "$spec_model" "$work/speculator"
rm -f "$work/speculator/calibration.json"
spec_model=$work/speculator
"$bin/forepack" calibrate --model "$main_model" --spec "$spec_model" --prompts "$work/documents.jsonl" --max-tokens 8 \
    --quality 0.8 --dtype bf16 --picture "$work/calibration.svg" >"$work/calibrate.log" 2>&1
equal 0.8 "$(jq .measured.quality "$spec_model/calibration.json")" "quality of the table"
grep -q '^These prompts promise a quality of at most 0.8\.' "$work/calibrate.log" || fail "the promise of 48 prompts"
equal 1 "$(grep -c '^warning: nine in ten prompts have 2[0-9]* to 2[0-9]* tokens' "$work/calibrate.log")" "equal lengths"
python3 -c 'import sys, xml.etree.ElementTree as x; sys.exit(x.parse(sys.argv[1]).getroot().tag != "{http://www.w3.org/2000/svg}svg")' \
    "$work/calibration.svg" || fail "no picture"

# Prompts alone suffice. Copies and equal answers are reported.
jq -c 'select(.prompt) | {prompt, task: "<all & more>"}' "$work/documents.jsonl" | sed -n 1,8p >"$work/alone.jsonl"
for _ in 1 2; do cat "$work/alone.jsonl"; done >"$work/twice.jsonl"
cat "$work/twice.jsonl" "$work/alone.jsonl" >"$work/thrice.jsonl"
"$bin/forepack" calibrate --model "$main_model" --spec "$spec_model" --prompts "$work/thrice.jsonl" --max-tokens 4 \
    --output "$work/alone.json" --picture "$work/alone.svg" >"$work/alone.log" 2>&1
grep -q '^warning: 16 of 24 prompts are copies of others' "$work/alone.log" || fail "copies are not reported"
grep -q ' Quality 0.99 needs at least 500 prompts that are answered right; 24 are.$' "$work/alone.log" || fail "the number needed"
python3 -c 'import sys, xml.etree.ElementTree as x; x.parse(sys.argv[1])' "$work/alone.svg" || fail "the picture has markup of a task"

start_up --workers 1 --tp 1 --speculators 1 --no-enable-prefix-caching
jq -s 'map(select(.prompt))[0]' "$work/documents.jsonl" | jq -rj .prompt >"$work/prompt"
ask() { generate --prompt-file "$work/prompt" --max-tokens 8 --prefill required --return-kept "$@"; }
ask --quality 0.8 >"$work/pruned.json"
equal true "$(jq '.prefill == "speculated" and .prefill_reason == "quality" and .keep_rate < 1
    and .usage.kept_tokens < .usage.prompt_tokens' "$work/pruned.json")" "a quality of 0.8 prunes"
rate=$(jq .keep_rate "$work/pruned.json")
ask --keep-rate "$rate" >"$work/fixed.json"
equal "$(jq -c '[.kept, .token_ids]' "$work/fixed.json")" "$(jq -c '[.kept, .token_ids]' "$work/pruned.json")" \
    "the same tokens as at that keep rate, given by the client"
ask --quality 0.995 >"$work/unsure.json" # too few documents for it
equal '["unsure",1]' "$(jq -c '[.prefill_reason, .keep_rate]' "$work/unsure.json")" "too few documents"
ask --quality 0.8 --look-ahead 4 --prefill on >"$work/other.json"
equal uncalibrated "$(jq -r .prefill_reason "$work/other.json")" "other options"
equal true "$(status_json | jq --argjson rate "$rate" '[.nodes[] | select(.role == "speculator")]
    | .[0] | .calibrated_for != null and .calibration_unused == null and .quality_keep_rate == ($rate + 1) / 2')" "status"
stop_up

jq '.speculator.model = "0123456789abcdef"' "$spec_model/calibration.json" >"$work/other_pair.json"
cp "$work/other_pair.json" "$spec_model/calibration.json"
code=0
"$bin/forepack-speculator" --model "$spec_model" --router "$node_server" >"$work/refused.log" 2>&1 || code=$?
equal 2 "$code" "exit code with the calibration of another speculator"
grep -q 'calibration.json: made for a speculator with fingerprint 0123456789abcdef' "$work/refused.log" || fail "no reason"
equal 1 "$(grep -c calibration.json "$work/refused.log")" "one sentence"
echo "calibration: all passed"
