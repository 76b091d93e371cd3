#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A conversation of seven turns: each turn finds the rows of the previous turn in the prefix cache and recalls tokens that it
# pruned; an edited history reuses nothing after the edit; the same tokens come after a restart of the router and of the
# speculator. Two questions on one document have the same rows of it, whichever comes first.
. "$(dirname "$0")/lib.sh"

# Row t: a tool's message and a question, with the earlier turns and their answers.
jq -nc '[inputs | .prompt] as $prompts | range(7) as $t | {id: "turn\($t)", messages: ([range($t + 1) as $i |
    {role: "tool", content: $prompts[$i][0:1500]},
    {role: "user", content: ($prompts[$i] | split("Question: ") | last | rtrimstr("\nAnswer:"))},
    {role: "assistant", content: "\(1000 + 7 * $i)"}][:-1])}' <(head -n 7 "$prompts") >"$work/turns.jsonl"
sed -n '$s/tool","content":"[A-Z]/&x/p' "$work/turns.jsonl" | jq -c '.id = "edited"' >"$work/edited.jsonl"
sed -n '$p' "$work/turns.jsonl" >"$work/last.jsonl"
for i in 0 1; do
    jq -nc '[inputs | .prompt | split("Question: ")] as $prompts | {id: "about", prompt: ($prompts[0][0] + "Question: " + $prompts['$i'][1])}' \
        <(head -n 2 "$prompts") >"$work/question$i.jsonl"
done

choose_ports
run_router() {
    start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --score-timeout-ms 600000
    router=$last_pid
}
run_speculator() {
    start speculator "$bin/forepack-speculator" --model "$spec_model" --router "$node_server"
    speculator=$last_pid
}
stop() {
    kill -TERM "$1"
    wait "$1" || fail "a process ended with $?"
}
all_attached() { nodes worker 1 && nodes speculator 1; }
run_router
run_speculator
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server"
wait_until 60 "the cluster is ready" all_attached

# ask NAME ROWS FLAGS...: the answers are in NAME.out.
ask() {
    "$bin/forepack" batch --server "$server" --input "$work/$2.jsonl" --output "$work/$1.out" --window 1 --max-tokens 8 \
        --ignore-eos --prefill required --keep-rate 0.3 --return-kept "${@:3}" 2>/dev/null
}
# same A B: the same tokens, by the same kept tokens.
answer_of() { jq -c '[.token_ids, .kept, .usage.frozen_tokens, .usage.recalled_tokens]' "$work/$1.out"; }
same() { equal "$(answer_of "$1")" "$(answer_of "$2")" "answers $1 and $2"; }

ask turns turns
equal 7 "$(wc -l <"$work/turns.out")" "answers"
# Every full block of the previous turn's rows is cached; each turn is scored once; recalled tokens are kept.
equal true "$(jq -s '[.[].usage] | [range(1; 7) as $t | .[$t - 1] as $before | .[$t] |
    .cached_tokens >= ($before.kept_tokens / 16 | floor) * 16 and .frozen_tokens > $before.kept_tokens
    and .scored_tokens == .prompt_tokens and .kept_tokens < 0.7 * .prompt_tokens] | all' "$work/turns.out")" "rows cached by each turn"
equal true "$(jq -s 'map(.usage.recalled_tokens) | add > 0' "$work/turns.out")" "tokens are recalled"
tail -n 1 "$work/turns.out" >"$work/seventh.out"

# The same request again is not scored. Over HTTP, too, the rows are frozen.
ask again last
same seventh again
equal true "$(jq '.usage.score_cached_tokens == .usage.prompt_tokens' "$work/again.out")" "the last turn again"
equal "$(jq -c '[.usage.frozen_tokens, .usage.recalled_tokens]' "$work/seventh.out")" "$(jq -c '. + {max_tokens: 8, prefill: "required",
    keep_rate: 0.3}' "$work/last.jsonl" | curl -sf "http://127.0.0.1:$http_port/v1/chat/completions" -d @- |
    jq -c '[.usage.frozen_tokens, .usage.recalled_tokens]')" "frozen and recalled tokens over HTTP"
ask plain last --no-conversation
equal '[0,0]' "$(jq -c '[.usage.frozen_tokens, .usage.recalled_tokens]' "$work/plain.out")" "no conversation"

# Every turn comes after the edit: each is scored again, and only the template's text before it is cached.
ask edited edited
equal true "$(jq '.usage.scored_tokens > 2 * .usage.prompt_tokens and .usage.cached_tokens <= 16' "$work/edited.out")" "an edited history"

document=$(jq -c '{prompt: (.prompt | split("Question: ")[0])}' "$work/question0.jsonl" |
    curl -sf "http://127.0.0.1:$http_port/tokenize" -d @- | jq .count)
ask question0 question0 --shared-tokens "$((document - 4))"
ask question1 question1 --shared-tokens "$((document - 4))"
equal true "$(jq -s '(.[0].usage.frozen_tokens == .[1].usage.frozen_tokens) and .[1].usage.frozen_tokens > 0.2 * .[1].usage.prompt_tokens
    and .[1].usage.cached_tokens >= (.[1].usage.frozen_tokens / 16 | floor) * 16 and (map(.usage.recalled_tokens) | add > 0)' \
    "$work/question0.out" "$work/question1.out")" "the document's rows"
refused=$(jq -c '. + {max_tokens: 1, prefill: "required", keep_rate: 0.3, shared_tokens: 99999}' "$work/question0.jsonl" |
    curl -s "http://127.0.0.1:$http_port/v1/completions" -d @- | jq -r .error.message)
[[ $refused =~ ^"shared_tokens 99999: must be less than the "[0-9]+" prompt tokens"$ ]] || fail "an end after the prompt: $refused"

stop "$router"
run_router
wait_until 60 "the nodes are attached again" all_attached
ask first question1 --shared-tokens "$((document - 4))"
same first question1
ask router last
same seventh router
equal true "$(jq '.usage.scored_tokens > 2 * .usage.prompt_tokens' "$work/router.out")" "turns are scored after a start of the router"
ask edited_again edited
same edited edited_again
stop "$speculator"
run_speculator
wait_until 60 "the speculator is attached again" all_attached
ask speculator last
same seventh speculator
echo "conversation: all passed"
