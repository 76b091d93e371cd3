#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shadows with real processes: answers of prompts that are hardly pruned agree with the whole prompt, those of prompts that
# are pruned to a few tokens do not. Metrics and status show both. Only the requests of the second kind fall back, and their
# answers say so.
. "$(dirname "$0")/lib.sh"

choose_ports
refused() { # refused SENTENCE FLAGS...
    if "$bin/forepack-router" --model "$main_model" "${listen[@]}" "${@:2}" 2>"$work/error"; then fail "was started: $*"; fi
    grep -qF -- "$1" "$work/error" || fail "wrong reason: '$(cat "$work/error")' instead of '$1'"
}
for bad in often answer: answer:1 answer:x answer0.9 first-token:-1; do
    refused "--shadow-fallback '$bad': must be off, first-token[:Q] or answer[:Q]" --shadow 1 --shadow-fallback "$bad"
done
refused "--shadow-fallback: needs --shadow" --shadow-fallback answer:0.9
refused "the last 1000 answers cannot show that a share of 0.999 agrees" --shadow 1 --shadow-fallback answer:0.999
refused "with --keep-rate it needs the share" --shadow 1 --shadow-fallback answer --keep-rate 0.3
refused "--shadow" --shadow 1.5

start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --speculate-min-tokens 1 \
    --shadow 1 --shadow-per-s 1000 --shadow-fallback answer:0.5 --score-timeout-ms 600000
router=$last_pid
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
start speculator "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --threads 1
status() { "$bin/forepack" status --server "$server" --json; }
nodes_are_there() { status | jq -e '.ready and (.nodes | length == 2)'; }
wait_until 60 "the nodes are there" nodes_are_there
equal '[]' "$(status | jq -c .agreements)" "agreements before the first answer"

metric() { # metric NAME LABELS: its value, or 0
    curl -sf "http://127.0.0.1:$http_port/metrics" >"$work/metrics"
    awk -v name="forepack:$1{$2}" '$1 == name { value = $2 } END { print value + 0 }' "$work/metrics"
}
model=$(basename "$main_model")
shadow() { metric "shadow_$1" "tenant=\"$2\",model_name=\"$model\""; } # shadow NAME TENANT
reaches() { [ "$(shadow "$1" "$2")" -ge "$3" ]; }
ask() { # ask TENANT KEEP_RATE I FLAGS...: the answer to prompt I
    sed -n "$(($3 + 1))p" "$prompts" | jq -j .prompt >"$work/prompt"
    "$bin/forepack" generate --server "$server" --tenant "$1" --keep-rate "$2" --prompt-file "$work/prompt" --max-tokens 8 --prefill on \
        --json "${@:4}"
}
for i in 0 1 2 3 4 5 6 7; do # waits for each shadow, because the next request would interrupt it
    ask kept 0.8 "$i" | jq -e '.prefill == "speculated" and (.prefill_limit // "") == ""' >/dev/null || fail "no pruned answer"
    wait_until 20 "an answer is measured" reaches scored_total kept $((i + 1))
done
n=0
falls_back() { [ "$(shadow fallbacks pruned)" = 1 ]; }
while ! falls_back; do
    [ $n -lt 12 ] || fail "pruning does not fall back: $(status | jq -c .agreements)"
    ask pruned 0.01 $((n % 24)) | jq -e '.prefill == "speculated"' >/dev/null || fail "no pruned answer"
    n=$((n + 1))
    wait_until 20 "an answer is measured" reaches scored_total pruned $n
done
equal 8 "$(shadow compared_total kept)" "compared answers"
[ "$(shadow answer_agreed_total kept)" -ge 7 ] || fail "answers of prompts that are hardly pruned do not agree"
[ "$(shadow answer_agreed_total pruned)" -lt $((n / 2)) ] || fail "answers of prompts without facts agree"
equal 0 "$(shadow fallbacks kept)" "fallbacks of the tenant whose answers agree"
status | jq -e '.agreements | map({key: .tenant, value: .}) | from_entries |
    (.kept.falls_back or .kept.compared != 8 or .kept.keep_rate != 0.8 or .kept.lower_bound < 0.5 | not)
    and .pruned.falls_back and .pruned.promise == 0.5' >/dev/null || fail "status: $(status | jq -c .agreements)"
"$bin/forepack" status --server "$server" >"$work/status"
grep -q '^  pruned  *keep rate 0.01: .*falls back to the whole prompt$' "$work/status" || fail "no line in the status"

# Requests of this tenant with this keep rate are prefilled whole, and say so; the others are pruned.
decision() { jq -c '[.prefill, .keep_rate, .prefill_limit // ""]'; }
fallback='["whole:fallback",1,"shadow-fallback"]'
equal "$fallback" "$(ask pruned 0.01 3 --id whole | decision)" "a request that falls back"
equal '"speculated"' "$(ask pruned 0.6 3 | jq -c .prefill)" "another keep rate"
equal '"speculated"' "$(ask others 0.01 3 | jq -c .prefill)" "another tenant"
equal '"speculated"' "$(ask pruned 0.01 3 --prefill required | jq -c .prefill)" "a request that must be pruned"
http_falls_back() { # the router chooses the id, so a few requests are pruned
    curl -sf -D "$work/headers" "http://127.0.0.1:$http_port/v1/completions" -d "$(jq -n --rawfile p "$work/prompt" \
        '{prompt: $p, max_tokens: 2, keep_rate: 0.01, prefill: "on", tenant: "pruned", temperature: 0}')" >"$work/answer"
    jq -e '.usage.prefill_limit == "shadow-fallback"' "$work/answer"
}
wait_until 20 "a request over HTTP falls back" http_falls_back
grep -qi '^x-forepack-prefill-limit: shadow-fallback$' <<<"$(tr -d '\r' <"$work/headers")" || fail "no header"
"$bin/forepack" explain --server "$server" --id whole --tenant pruned --prompt-file "$work/prompt" --keep-rate 0.01 --prefill on \
    --max-tokens 1 >"$work/explained"
grep -q "^rule .*shadow-fallback$" "$work/explained" || fail "no line of explain"
[ "$(metric prefill_skipped_total 'reason="fallback"')" -ge 3 ] || fail "requests that fell back are not counted"

# Sampled answers have a log-probability only; penalties change the likeliest token.
ask sampled 0.5 1 --temperature 1 --seed 7 >/dev/null
wait_until 20 "a sampled answer is measured" reaches scored_total sampled 1
equal 0 "$(shadow compared_total sampled)" "compared answers of a tenant that samples"
ask sampled 0.5 2 --repetition-penalty 1.2 >/dev/null
equal 1 "$(metric shadow_skipped_total 'reason="changed"')" "answers that cannot be compared"

# Shadows are no requests: neither totals nor latencies count them. They end with the router.
asked=$(grep -c ' request_done ' "$work/router.log")
equal "$asked" "$(status | jq .totals.requests)" "requests in the totals"
kill -TERM "$router"
wait "$router" || fail "the router did not end well"
grep -q ' pruning_fell_back tenant=pruned ' "$work/router.log" || fail "no line about the fallback"
grep -q ' shadow_disagreed .* tokens=[0-9]* kept=[0-9]* completion=[0-9]* agreed=[0-9]* logprob=-' "$work/router.log" ||
    fail "no line about the worst answer"
if grep -q "permit number" "$work"/*.log; then fail "a log has the text of a prompt"; fi
echo "shadow: all passed"
