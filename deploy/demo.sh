#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Forepack, starts a local cluster with the demo models, and asks it questions about long documents: with all
# tokens kept, with the tokens that the default quality of 0.99 needs, and at keep rate 0.3; then a conversation of four turns.
# Prints each answer with its time to first token (TTFT).
#
# Usage: deploy/demo.sh [--prompts N] [--port P] [--keep-running]
# Exit code: 0 if every request was answered, 1 if not, 2 for wrong usage.
set -euo pipefail
export LC_ALL=C.UTF-8 # printf reads numbers with a decimal point
cd "$(dirname "$0")/.."

n_prompts=10
port=
keep_running=no
while [ $# -gt 0 ]; do
    case "$1" in
    --prompts) n_prompts=${2:?--prompts: expected a number}; shift ;;
    --port) port=${2:?--port: expected a number}; shift ;;
    --keep-running) keep_running=yes ;;
    --help) sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown flag $1 (--help lists all)" >&2; exit 2 ;;
    esac
    shift
done

./deploy/packages.sh
echo "building ..."
log=build/release/demo.log
mkdir -p build/release
{ cmake --preset release && cmake --build --preset release; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }

bin=build/release/bin
pair=deploy/demo-model
work=$(mktemp -d)
cluster=

finish() {
    if [ -n "$cluster" ]; then
        kill "$cluster" 2>/dev/null || true
        wait "$cluster" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap finish EXIT

# Default of --port: the first of two free ports from 50051 on; nodes attach at the second.
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
if [ -z "$port" ]; then
    port=50051
    while taken "$port" || taken "$((port + 1))"; do port=$((port + 2)); done
fi
server=127.0.0.1:$port
http_port=8000
while (exec 3<>"/dev/tcp/127.0.0.1/$http_port") 2>/dev/null; do http_port=$((http_port + 1)); done

start_cluster() { # start_cluster FLAGS...
    setsid "$bin/forepack" up --port "$port" --http-port "$http_port" "$@" >"$log" 2>&1 </dev/null &
    cluster=$!
    for _ in $(seq 600); do
        [ "$("$bin/forepack" status --server "$server" --json 2>/dev/null |
            jq '.ready and ([.nodes[].role] | index("speculator") != null)')" = true ] && break
        kill -0 "$cluster" 2>/dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.1
    done
}

# Each question is asked three times; the prefix cache would speed up the second and the third.
start_cluster --no-enable-prefix-caching
"$bin/forepack" status --server "$server"
echo

ask() { # ask ROW-FILE OUTPUT-FILE FLAGS...
    local row=$1 output=$2
    shift 2
    jq -rj .prompt "$row" >"$work/prompt"
    "$bin/forepack" generate --server "$server" --prompt-file "$work/prompt" --max-tokens 64 --json "$@" >"$output"
}

# A warm-up, so that the first question is not measured with cold caches.
head -n 1 "$pair/prompts.jsonl" >"$work/row"
ask "$work/row" "$work/warm" --prefill off
ask "$work/row" "$work/warm" --prefill on

printf '%-44s %-16s | %-26s | %-51s | %s\n' "" "" "all tokens kept" "quality 0.99" "keep rate 0.3"
printf '%-44s %-16s | %-16s %9s | %-16s %14s %9s %9s | %-16s %9s %9s\n' question expected \
    answer "TTFT ms" answer "keep rate" kept "TTFT ms" answer kept "TTFT ms"
failed=0
while read -r line; do
    printf '%s\n' "$line" >"$work/row"
    ask "$work/row" "$work/full" --prefill off || failed=1
    ask "$work/row" "$work/quality" --prefill on || failed=1
    ask "$work/row" "$work/r3" --prefill on --keep-rate 0.3 || failed=1
    [ $failed = 0 ] || { echo "a request was not answered; log of the cluster: $log" >&2; exit 1; }
    jq -c -s --slurpfile row "$work/row" \
        'def trim: gsub("^\\s+|\\s+$"; "");
         {question: ($row[0].prompt | trim | split("\n") | map(select(startswith("Question: "))) | last | ltrimstr("Question: ")),
          expected: ($row[0].answer | trim),
          runs: map({answer: (.text | trim), kept: .usage.kept_tokens, prompt: .usage.prompt_tokens,
                     rate: "\(.keep_rate) \(.prefill_reason)", ttft: .timing.ttft_ms})}' \
        "$work/full" "$work/quality" "$work/r3" | tee -a "$work/all" |
        jq -r '[(.question | .[0:43]), .expected[0:16], .runs[0].answer[0:16], .runs[0].ttft,
                .runs[1].answer[0:16], .runs[1].rate, "\(.runs[1].kept)/\(.runs[1].prompt)", .runs[1].ttft,
                .runs[2].answer[0:16], "\(.runs[2].kept)/\(.runs[2].prompt)", .runs[2].ttft] | @tsv' |
        while IFS=$'\t' read -r question expected a0 t0 a1 r1 k1 t1 a2 k2 t2; do
            printf '%-44s %-16s | %-16s %9.1f | %-16s %14s %9s %9.1f | %-16s %9s %9.1f\n' \
                "$question" "$expected" "$a0" "$t0" "$a1" "$r1" "$k1" "$t1" "$a2" "$k2" "$t2"
        done
done < <(head -n "$n_prompts" "$pair/prompts.jsonl")

echo
jq -r -s '
    def median: sort | .[length / 2 | floor];
    def right($i): map(select(.runs[$i].answer == .expected)) | length;
    length as $n |
    "right answers:  \(right(0)) of \($n) with all tokens kept, \(right(1)) at quality 0.99, \(right(2)) at keep rate 0.3",
    "median TTFT:    \([.[].runs[0].ttft] | median) ms, \([.[].runs[1].ttft] | median) ms, \([.[].runs[2].ttft] | median) ms"' \
    "$work/all"
jq -r '"accuracy on \(.documents) unseen documents of \(.tokens) tokens, measured earlier: " +
    "\(.accuracy.full * 1000 | round / 10) % with all tokens kept, " +
    "\(.accuracy["0.3"] * 1000 | round / 10) % at keep rate 0.3 (all classes of questions)"' \
    "$pair/accuracy.json"

# A conversation: each turn has another document and a question about one of the documents so far.
kill "$cluster"
wait "$cluster" || true
start_cluster
printf '\na conversation at keep rate 0.3\n%-44s %-9s | %-9s %9s %7s %9s %7s %9s\n' question expected answer kept frozen recalled \
    cached "TTFT ms"
echo '[]' >"$work/talk"
for turn in 0 1 2 3; do
    about=$((turn ? turn - 1 : 0)) # the document of the previous turn
    jq -c -s --slurpfile talk "$work/talk" --argjson turn $turn --argjson about $about '
        [.[] | select(.task == "needle")] as $rows |
        ($rows[$turn].prompt | split("Question: ")[0] | .[0:2400]) as $text |
        ($rows[$about].prompt | split("\nQuestion: ") | last | rtrimstr("\nAnswer:")) as $question |
        {messages: ($talk[0] + [{role: "user", content: $text}, {role: "user", content: ("Question: " + $question)}])}' \
        "$pair/prompts.jsonl" >"$work/turn"
    rm -f "$work/said"
    "$bin/forepack" batch --server "$server" --input "$work/turn" --output "$work/said" --max-tokens 16 --prefill on \
        --keep-rate 0.3 2>/dev/null || { echo "a turn was not answered; log of the cluster: $log" >&2; exit 1; }
    jq -c --slurpfile said "$work/said" '.messages + [{role: "assistant", content: $said[0].text}]' "$work/turn" >"$work/talk"
    jq -r --slurpfile turn "$work/turn" --arg expected "$(jq -r -s --argjson about $about \
        '[.[] | select(.task == "needle")][$about].answer | ltrimstr(" ")' "$pair/prompts.jsonl")" '.usage as $u |
        [($turn[0].messages | last | .content | ltrimstr("Question: ") | .[0:43]), $expected, (.text | gsub("^\\s+|\\s+$"; "")),
         "\($u.kept_tokens)/\($u.prompt_tokens)", $u.frozen_tokens, $u.recalled_tokens, $u.cached_tokens, .timing.ttft_ms] | @tsv' \
        "$work/said" | while IFS=$'\t' read -r question expected answer kept frozen recalled cached ttft; do
            printf '%-44s %-9s | %-9s %9s %7s %9s %7s %9.1f\n' "$question" "$expected" "$answer" "$kept" "$frozen" "$recalled" \
                "$cached" "$ttft"
        done
done

if [ "$keep_running" = yes ]; then
    echo
    echo "The cluster keeps running, log in $log. Commands:"
    echo "  $bin/forepack generate --server $server --prompt-file FILE"
    echo "  $bin/forepack chat --server $server"
    echo "  $bin/forepack status --server $server"
    echo "  curl http://127.0.0.1:$http_port/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"
    echo "Stop it: kill $cluster"
    cluster=
fi
