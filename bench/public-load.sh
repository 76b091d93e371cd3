#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sends the same load to a cluster of the demo models twice: by `forepack bench serve` over gRPC, and by AIPerf, a public
# load generator, over HTTP. Prints both tools' latencies and throughput side by side. Fails unless every request of both is
# answered with as many tokens as were asked for. Exit code 77: AIPerf is not installed. Nothing else should run.
# Usage: bench/public-load.sh [--aiperf PROGRAM] [--bin DIR] [--requests N] [--concurrency N] [--max-tokens N]
#   --aiperf PROGRAM  default `aiperf`; to install it: python3 -m venv DIR && DIR/bin/pip install aiperf==0.13.0
#   --bin DIR         folder of the programs (default build/release/bin)
#   --requests N      requests of each tool (default 200)
#   --concurrency N   concurrent requests (default 8)
#   --max-tokens N    tokens of each answer (default 32)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

aiperf=aiperf bin=$here/../build/release/bin requests=200 concurrency=8 max_tokens=32
pair=$here/../deploy/demo-model
while [ $# -gt 0 ]; do
    case $1 in
    --aiperf | --bin | --requests | --concurrency | --max-tokens)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift 2
        ;;
    *)
        echo "unknown option '$1': see the head of $0" >&2
        exit 2
        ;;
    esac
done
command -v "$aiperf" >/dev/null || { echo "skipped: $aiperf is not installed (see the head of $0)"; exit 77; }

work=$(mktemp -d)
cluster=
stop_cluster() {
    [ -z "$cluster" ] || { kill "$cluster" && wait "$cluster"; } 2>/dev/null || true
    rm -rf "$work"
}
trap stop_cluster EXIT

free_port() {
    local port=$1
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo "$port"
}
port=$(free_port 52051) http_port=$(free_port 28000)
"$bin/forepack" up --port "$port" --http-port "$http_port" --main "$pair/main" --spec "$pair/speculator" >"$work/up.log" 2>&1 &
cluster=$!
for ((i = 0; i < 600; i++)); do
    ! grep -q ^ready: "$work/up.log" || break
    sleep 0.1
done
grep -q ^ready: "$work/up.log" || { tail -n 5 "$work/up.log" >&2; exit 1; }

"$bin/forepack" bench serve --server "127.0.0.1:$port" --prompts "$pair/prompts.jsonl" --concurrency "$concurrency" \
    --requests "$requests" --max-tokens "$max_tokens" --ignore-eos --warm-up 20 --json >"$work/serve.json" 2>"$work/serve.log"

jq -c '{text: .prompt}' "$pair/prompts.jsonl" >"$work/in.jsonl"
"$aiperf" profile -m main --url "http://127.0.0.1:$http_port" --endpoint-type completions --streaming --tokenizer "$pair/main" \
    --input-file "$work/in.jsonl" --custom-dataset-type single_turn --request-count "$requests" --concurrency "$concurrency" \
    --warmup-request-count 20 --extra-inputs "max_tokens:$max_tokens" --extra-inputs ignore_eos:true --use-server-token-count \
    --ui simple --artifact-dir "$work/aiperf" >"$work/aiperf.log" 2>&1 || { tail -n 30 "$work/aiperf.log" >&2; exit 1; }

jq -rn --slurpfile serve "$work/serve.json" --slurpfile aiperf "$work/aiperf/profile_export_aiperf.json" \
    --argjson requests "$requests" --argjson tokens $((requests * max_tokens)) '
    def ms: . * 10 | round / 10;
    ($serve[0].levels[0]) as $s | ($aiperf[0]) as $a |
    ["", "forepack bench serve, gRPC", "AIPerf, HTTP"],
    ["requests answered", $s.completed, $a.request_count.avg],
    ["output tokens", $s.output_tokens, $a.total_usage_completion_tokens.avg],
    (["p50", "p90", "p99"][] | ["TTFT ms " + ., ($s["ttft_ms_" + .] | ms), ($a.time_to_first_token[.] | ms)]),
    (["p50", "p99"][] | ["mean time per later token, ms " + ., ($s["tpot_ms_" + .] | ms), ($a.inter_token_latency[.] | ms)]),
    (["p50", "p99"][] | ["whole answer ms " + ., ($s["e2e_ms_" + .] | ms), ($a.request_latency[.] | ms)]),
    ["output tokens/s", ($s.output_tokens_per_s | round), ($a.output_token_throughput.avg | round)] | @tsv,
    if $s.completed == $requests and $a.request_count.avg == $requests and
       $s.output_tokens == $tokens and $a.total_usage_completion_tokens.avg == $tokens then empty
    else error("not every request was answered with all its tokens") end' >"$work/table.tsv" ||
    { cat "$work/table.tsv"; exit 1; }
column -t -s $'\t' "$work/table.tsv"
