#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two routers, each with nodes of its own, of the same models. kill -9 of the router in use, in the middle of its
# answers: forepack batch, generate and chat continue at the other one, with the tokens that would have come.
. "$(dirname "$0")/lib.sh"

declare -A servers node_servers http_ports router_pids
open_router() { # open_router NAME: starts or restarts the router
    start "router_$1" "$bin/forepack-router" --model "$main_model" --port "${servers[$1]#*:}" --http-port "${http_ports[$1]}" \
        --node-listen "${node_servers[$1]}"
    router_pids[$1]=$last_pid
}
for name in a b; do
    choose_ports
    servers[$name]=$server node_servers[$name]=$node_server http_ports[$name]=$http_port
    open_router $name
    start "worker_$name" "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
    start "speculator_$name" "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --threads 1
done
both=${servers[a]},${servers[b]}
serves() { # serves NAME: the router has a worker group and a speculator
    server=${servers[$1]}
    nodes worker 1 && nodes speculator 1
}
generated() { # generated NAME N: the router's nodes have generated more than N tokens since it started
    server=${servers[$1]}
    status_is ".totals.completion_tokens > $2"
}
kill_router() {
    kill -KILL "${router_pids[$1]}"
    wait "${router_pids[$1]}" 2>/dev/null || true
}
for name in a b; do wait_until 60 "router $name is ready" serves $name; done

# Whole and pruned prompts, log-probabilities, penalties and stop strings.
jq -c --slurp '.[:20] | to_entries[] | .key as $k | {id: "row \($k)", prompt: .value.prompt, max_tokens: (150 + 10 * $k),
    seed: $k, temperature: 1, ignore_eos: true}
    + [{prefill: "off"}, {prefill: "on", keep_rate: 0.4}, {keep_rate: 0.3}, {prefill: "off", logprobs: 2},
       {prefill: "off", repetition_penalty: 1.1, frequency_penalty: 0.2}][$k % 5]
    + (if $k % 4 == 0 then {stop: ["zq"]} else {} end)' "$prompts" >"$work/in.jsonl"
equal 20 "$(wc -l <"$work/in.jsonl")" "rows of the batch"
sorted() { jq -cS '{id, text, token_ids, finish_reason, logprobs, tokens: .usage.completion_tokens, kept: .usage.kept_tokens}' "$1" | sort; }
batch() { "$bin/forepack" batch --input "$work/in.jsonl" --output "$work/$1.jsonl" --server "$both" 2>"$work/$1.log"; }
batch calm
sorted "$work/calm.jsonl" >"$work/calm"
equal 0 "$(jq -s 'map(.resumed) | add' "$work/calm.jsonl")" "resumed answers without a kill"

for name in a b; do # each router in turn is the one that is lost
    other=$([ $name = a ] && echo b || echo a)
    both=${servers[$name]},${servers[$other]}
    before=$(server=${servers[$name]} && status_json | jq .totals.completion_tokens)
    batch "killed_$name" &
    pid=$!
    wait_until 60 "the answers have begun" generated $name $((before + 300))
    kill_router $name
    wait $pid || fail "batch over the loss of router $name ended with $?: $(cat "$work/killed_$name.log")"
    sorted "$work/killed_$name.jsonl" >"$work/killed"
    cmp "$work/calm" "$work/killed" || fail "answers differ: $(diff "$work/calm" "$work/killed" | cut -c 1-300)"
    resumed=$(jq -s 'map(select(.resumed > 0)) | length' "$work/killed_$name.jsonl")
    [ "$resumed" -gt 0 ] || fail "no answer was resumed"
    echo "router $name killed: $resumed of 20 answers resumed, 0 lost, 0 different"
    open_router $name
    wait_until 60 "router $name is back" serves $name
done

# A sampled answer without a seed: its request id gives the same seed everywhere. The text is written once.
ask=(--prompt "The permit number of Nena Morik is" --temperature 1 --max-tokens 3000 --ignore-eos --id retry)
server=${servers[b]}
generate "${ask[@]}" >"$work/whole.json"
jq -j .text "$work/whole.json" >"$work/whole.txt"
equal "$(jq -c .token_ids "$work/whole.json")" "$(server=${servers[a]} && generate "${ask[@]}" | jq -c .token_ids)" "a request sent again"
[ "$(jq -c .token_ids "$work/whole.json")" != "$(generate "${ask[@]}" --id other | jq -c .token_ids)" ] || fail "two ids have one seed"
for format in text json; do
    both=${servers[a]},${servers[b]}
    before=$(server=${servers[a]} && status_json | jq .totals.completion_tokens)
    json=$([ $format = json ] && echo --json || true)
    "$bin/forepack" generate --server "$both" "${ask[@]}" $json >"$work/out.$format" 2>"$work/generate.log" &
    pid=$!
    wait_until 60 "the answer has begun" generated a $((before + 50))
    kill_router a
    wait $pid || fail "generate ended with $?: $(cat "$work/generate.log")"
    if [ $format = text ]; then
        cmp "$work/out.text" <(cat "$work/whole.txt"; echo) || fail "the text of the resumed answer differs"
    else
        equal "$(jq -c '[.text, .token_ids, .finish_reason, .usage.completion_tokens, 1]' "$work/whole.json")" \
            "$(jq -c '[.text, .token_ids, .finish_reason, .usage.completion_tokens, .resumed]' "$work/out.json")" "resumed answer"
    fi
    open_router a
    wait_until 60 "router a is back" serves a
done

# A lost router before the first question, and a dead address in the list.
equal "$(printf 'Hello\n' | "$bin/forepack" chat --server "${servers[b]}" --max-tokens 8 --seed 1)" \
    "$(printf 'Hello\n' | "$bin/forepack" chat --server "127.0.0.1:9,${servers[b]}" --max-tokens 8 --seed 1)" "chat"
code=0
"$bin/forepack" generate --server "${servers[a]},,${servers[b]}" --prompt x 2>"$work/generate.log" || code=$?
equal 2 $code "exit code for an empty address: $(cat "$work/generate.log")"
"$bin/forepack" generate --server "127.0.0.1:9,127.0.0.1:10" --prompt x 2>"$work/generate.log" && fail "no router, but an answer"

# Server-sent events of the HTTP API.
python3 "$source_dir/tests/integration/resume_client.py" "${http_ports[a]}" "${http_ports[b]}"

# A measurement goes on at the other router.
before=$(server=${servers[a]} && status_json | jq .totals.completion_tokens)
"$bin/forepack" bench serve --server "$both" --prompt-tokens 40 --max-tokens 300 --ignore-eos --requests 24 --concurrency 8 --json \
    >"$work/bench.json" 2>"$work/bench.log" &
pid=$!
wait_until 60 "the measurement has begun" generated a $((before + 1000))
kill_router a
wait $pid || fail "bench serve ended with $?: $(cat "$work/bench.log")"
equal '[24,0,true]' "$(jq -c '.levels[0] | [.completed, .failed, .resumed > 0]' "$work/bench.json")" "rows of the measurement"
echo "resume: passed"
