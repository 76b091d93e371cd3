#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rules for pruning of API keys and of the router: each API prunes only what the rule of the caller's key allows, its answer
# says so, and a changed rule applies at once.
. "$(dirname "$0")/lib.sh"

keys=$work/keys
# key NAME FLAGS...: adds a key of its own tenant, whose secret is then in the file NAME.key.
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" --tenant "$1" "${@:2}" >"$work/$1.key" 2>"$work/error"); }
refused() { # refused SENTENCE COMMAND...
    if "${@:2}" >/dev/null; then fail "was not refused: ${*:2}"; fi
    grep -qF -- "$1" "$work/error" || fail "wrong reason: '$(cat "$work/error")' instead of '$1'"
}
refused "prune 'sometimes': must be any, never, quality-at-least:Q, keep-at-least:R or required" key bad --prune sometimes
refused "prune 'keep-at-least:50': the number must be over 0 and below 1, such as 0.95" key bad --prune keep-at-least:50
refused "drafts 'on': must be auto or off" key bad --drafts on
[ ! -e "$keys" ] || fail "a rule that was refused leaves a file"
key legal --prune never
key half --prune keep-at-least:0.5
key good --prune quality-at-least:0.9
key cheap --prune required
key free --prune any
key plain --drafts off
key boss --operator
equal '["never","keep-at-least:0.5","quality-at-least:0.9","required","any",null,null]' \
    "$("$bin/forepack" keys list --file "$keys" --json | jq -c 'map(.prune)')" "rules in the list"
equal 'off' "$("$bin/forepack" keys list --file "$keys" --json | jq -r '.[5].drafts')" "drafts in the list"
grep -q '^half .* keep-at-least:0.5 ' <<<"$("$bin/forepack" keys list --file "$keys")" || fail "no rule in the table"

choose_ports
refuse_option() { "$bin/forepack-router" --model "$main_model" "${listen[@]}" "$@" 2>"$work/error"; }
refused "--prune-rule 'half': must be any, never," refuse_option --prune-rule half
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys" --speculate-min-tokens 1 \
    --prune-rule keep-at-least:0.6 --score-timeout-ms 600000
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
start speculator "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --threads 1
nodes_are_there() { "$bin/forepack" status --server "$server" --api-key-file "$work/boss.key" --json 2>"$work/error" |
    jq -e '.ready and (.nodes | length == 2)'; }
wait_until 60 "the nodes are there" nodes_are_there

seq -s ' ' 1 300 >"$work/prompt"
ask() { # ask KEY FLAGS...: the answer of Generate
    "$bin/forepack" generate --server "$server" --api-key-file "$work/$1.key" --prompt-file "$work/prompt" --max-tokens 2 \
        --ignore-eos --json "${@:2}" 2>"$work/error"
}
decision() { jq -c '[.prefill, .keep_rate, .prefill_limit // ""]'; }
expect() { # expect DECISION KEY FLAGS...
    equal "$1" "$(ask "${@:2}" | decision)" "${*:2}"
}
whole_if() { # whole_if KEY FLAGS...: every token is kept
    ask "$@" | jq -e '.usage.kept_tokens == .usage.prompt_tokens' >/dev/null || fail "tokens were pruned: $*"
}
expect '["speculated",0.2,""]' free --prefill on --keep-rate 0.2
expect '["speculated",0.2,""]' free --prefill on --keep-rate 0.2 # a selection that is held
expect '["whole:off",1,"never"]' legal --prefill on --keep-rate 0.2
expect '["whole:off",1,"never"]' legal --prefill required --keep-rate 0.2
expect '["whole:off",1,"never"]' legal --prefill auto --quality 0.5
expect '["whole:off",1,""]' legal
expect '["whole:keep_all",1,""]' legal --prefill on --keep-rate 1
whole_if legal --prefill required --keep-rate 0.2
expect '["speculated",0.5,"keep-at-least:0.5"]' half --prefill on --keep-rate 0.2
expect '["speculated",0.7,""]' half --prefill on --keep-rate 0.7
expect '["speculated",0.6,"keep-at-least:0.6"]' plain --prefill on --keep-rate 0.2 # the router's rule
ask half --prefill on --quality 0.5 | jq -e '.keep_rate >= 0.5 and .prefill_limit == "keep-at-least:0.5"' >/dev/null ||
    fail "a quality goes below the bound"
ask good --prefill on --keep-rate 0.2 | jq -e '(.prefill_reason == "fixed" | not) and .prefill_limit == "quality-at-least:0.9"' \
    >/dev/null || fail "a keep rate goes around the quality"
expect '["speculated",0.3,"required"]' cheap --prefill off --keep-rate 0.3
expect '["speculated",0.3,"required"]' cheap --prefill on --keep-rate 1 --look-ahead 3 # no calibration has these options
refused "prompt_logprobs: log-probabilities of the prompt need all of its tokens" ask cheap --prompt-logprobs 1
equal '"drafts-off"' "$(ask plain --drafts auto | jq -c .prefill_limit)" "drafts that a key does not allow"
"$bin/forepack" explain --server "$server" --api-key-file "$work/legal.key" --prompt-file "$work/prompt" --prefill on \
    --max-tokens 1 >"$work/explained"
grep -q "^rule  *the operator limits these requests: never$" "$work/explained" || fail "no line of explain"

# The same in all APIs of HTTP and in KServe.
/usr/bin/python3 "$(dirname "$0")/prune_rules_client.py" "$http_port" "$server" "$work/legal.key" "$work/half.key" "$work/prompt" \
    "$source_dir"
limited() { curl -sf -H @<(printf 'x-api-key: '; cat "$work/boss.key") "http://127.0.0.1:$http_port/metrics" |
    sed -n "s/^forepack:prefill_limited_total{rule=\"$1\"} //p"; }
[ "$(limited never)" -ge 8 ] || fail "the metric does not count"

# A rule that changes in the file applies to the next request, and without a speculator nothing is pruned.
sed -i 's/prune=never/prune=keep-at-least:0.4/' "$keys"
now_prunes() { [ "$(ask legal --prefill on --keep-rate 0.2 | decision)" = '["speculated",0.4,"keep-at-least:0.4"]' ]; }
wait_until 20 "the changed rule applies" now_prunes
kill -KILL "$last_pid"
lost() { [ "$(ask half --prefill on --keep-rate 0.2 --look-ahead 5 | decision)" = '["whole:no_node",1,"keep-at-least:0.5"]' ]; }
wait_until 20 "prompts stay whole without a speculator" lost
if ask cheap --look-ahead 5 >/dev/null; then fail "a prompt that must be pruned was answered whole"; fi
echo "prune_rules: all passed"
