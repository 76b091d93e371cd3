#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One tenant's long answers fill both sequence slots, and more of them wait: another tenant gets its answer
# meanwhile, and the long answers have the same tokens as alone. Tenants share a prefix cache if the operator wants it, but
# no entries of requests with a salt.
. "$(dirname "$0")/lib.sh"

start_up --workers 1 --speculators 0 --max-num-seqs 2
long=3 tokens=1000
# long_answer I NAME: answer I of tenant a, in NAME.
long_answer() { generate --tenant a --prompt "Story $1:" --max-tokens $tokens --ignore-eos >"$work/$2"; }
slots_are_full() { status_is '.queue.running == 2 and .queue.waiting >= 1'; }
preempted() { curl -sS "http://127.0.0.1:$http_port/metrics" | awk '/^forepack:preempted_requests_total/ { print $NF }'; }

pids=()
for i in $(seq $long); do
    long_answer "$i" "a$i" &
    pids+=($!)
done
wait_until 20 "tenant a fills the slots" slots_are_full
generate --tenant b --prompt "Say yes:" --max-tokens 1 >"$work/b"
for i in $(seq $long); do [ ! -s "$work/a$i" ] || fail "answer $i of tenant a ended before the answer of tenant b"; done
wait "${pids[@]}"
[ "$(preempted)" -ge 1 ] || fail "no answer of tenant a was preempted"
wait_until 20 "every KV block is free" all_returned
for i in $(seq $long); do
    long_answer "$i" alone
    equal "$(jq -c .token_ids "$work/alone")" "$(jq -c .token_ids "$work/a$i")" "answer $i of tenant a"
    equal $tokens "$(jq '.token_ids | length' "$work/a$i")" "tokens of answer $i"
done
stop_up

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --share-prefix-cache
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server"
wait_until 60 "a ready worker group" ready
# cached TENANT [SALT]: how many tokens of the same prompt are cached.
cached() {
    jq -n --arg tenant "$1" --arg salt "${2:-}" '{prompt: ("A long system prompt. " * 20), max_tokens: 1, tenant: $tenant,
        cache_salt: $salt}' | curl -sS --json @- "http://127.0.0.1:$http_port/v1/completions" |
        jq '.usage.prompt_tokens_details.cached_tokens // 0'
}
equal 0 "$(cached a)" "cached tokens of a new prompt"
[ "$(cached b)" -gt 0 ] || fail "tenants do not share the cache"
equal 0 "$(cached a one)" "cached tokens with a salt"
[ "$(cached a one)" -gt 0 ] || fail "a tenant does not share its cache with itself"
equal 0 "$(cached b one)" "cached tokens of the same salt in another tenant"
