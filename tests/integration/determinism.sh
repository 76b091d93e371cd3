#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same request gives the same bytes: cold and cached, alone and among 64, drafted and replayed. A prompt that must be
# pruned (`prefill` `required`) has the same answer in every state of the caches; under `auto` the answer says what was done.
# Usage: determinism.sh [REQUESTS]: in each of the six ways; 1,667 by default, which are 10,002 in all
. "$(dirname "$0")/lib.sh"
"$source_dir/deploy/llguidance.sh" "$(cd "$bin/../.." && pwd)/llguidance" || { [ "${CI:-}" != true ] && exit 77; }

choose_ports
requests=${1:-1667}
start_router() {
    start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 500 --worker-grace-ms 600000 \
        --score-timeout-ms 600000 --speculate-min-tokens 64 --chat-template "$source_dir/tests/integration/tools.jinja"
    router=$last_pid
}
start_worker() { start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1; worker=$last_pid; }
# A speculator with the main model, so that many draft tokens are right.
start_speculator() { start speculator "$bin/forepack-speculator" --model "$main_model" --router "$node_server" --threads 1; speculator=$last_pid; }
attached() { nodes worker 1 && nodes speculator 1; }
restart() { # restart ROLE...: their caches are empty afterwards
    for role; do kill -KILL "${!role}" && { wait "${!role}" 2>/dev/null || true; }; done
    for role; do "start_$role"; done
    wait_until 60 "the cluster is ready" attached
}
ask() {
    python3 "$source_dir/tests/integration/matrix/determinism.py" "$http_port" "$prompts" "$work/answers" "$requests" "$1" \
        >"$work/step" || fail "$(cat "$work/step")"
    echo "$2: $(cat "$work/step")"
}

start_router
start_speculator
start_worker
wait_until 60 "the cluster is ready" attached
ask first "cold, alone"
ask alone "cached, alone"
restart router speculator worker
ask together "cold, 64 at a time"
ask together "cached, 64 at a time"
ask drafted "drafted"
restart worker
ask together "replayed" >"$work/replayed" &
asking=$!
while kill -0 $asking 2>/dev/null; do
    before=$(status_json | jq .totals.completion_tokens)
    more() { ! kill -0 $asking 2>/dev/null || status_is ".totals.completion_tokens > $before + 300"; }
    wait_until 60 "tokens are flowing" more
    restart worker
done
wait $asking || fail "$(cat "$work/step")"
cat "$work/replayed"
grep -q ' [1-9][0-9]* replays' "$work/replayed" || fail "nothing was replayed"
for cold in router speculator worker "router speculator" "router worker" "speculator worker" "router speculator worker"; do
    restart $cold
    ask pruned "restarted: $cold"
done
ask auto "the router decides"
echo "determinism: passed"
