#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Forepack, starts a local cluster with the demo models, and asks it questions about long documents: with all
# tokens kept, with the tokens that the default quality of 0.99 needs, and at keep rate 0.3. Prints a table with the
# time to first token (TTFT) of each answer, and one document with its kept tokens; a page has all documents. Then it
# has a conversation of four turns.
#
# Usage: deploy/demo.sh [--prompts N] [--port P] [--bin DIR] [--keep-running]
#   --bin  programs to use, so that nothing is built
# Exit code: 0 if every request was answered, 1 if not, 2 for wrong usage.
set -euo pipefail
export LC_ALL=C.UTF-8 # printf reads numbers with a decimal point
cd "$(dirname "$0")/.."

n_prompts=10
port=
bin=
keep_running=no
while [ $# -gt 0 ]; do
    case "$1" in
    --prompts) n_prompts=${2:?--prompts: expected a number}; shift ;;
    --port) port=${2:?--port: expected a number}; shift ;;
    --bin) bin=${2:?--bin: expected a folder}; shift ;;
    --keep-running) keep_running=yes ;;
    --help) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown flag $1 (--help lists all)" >&2; exit 2 ;;
    esac
    shift
done
[[ $n_prompts =~ ^[1-9][0-9]*$ ]] || { echo "--prompts $n_prompts: expected a number over 0" >&2; exit 2; }

build() {
    local log=build/release/build.log
    ./deploy/packages.sh
    mkdir -p build/release
    bin=build/release/bin
    echo "configuring ..."
    cmake --preset release >"$log" 2>&1 && cmake --build --preset release 2>&1 | ./deploy/progress.sh "$log" && return
    tail -n 100 "$log" >&2
    echo "the build failed: $log" >&2
    exit 1
}
[ -n "$bin" ] || build

files=$(realpath "$bin/..")
log=$files/demo.log
page=$files/demo.html
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

fail() {
    echo "$*; log of the cluster: $log" >&2
    exit 1
}

# Default of --port: the first of two free ports from 50051 on; nodes attach at the second.
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
if [ -z "$port" ]; then
    port=50051
    while taken "$port" || taken "$((port + 1))"; do port=$((port + 2)); done
fi
server=127.0.0.1:$port
http_port=8000
while taken "$http_port"; do http_port=$((http_port + 1)); done

ready() {
    [ "$("$bin/forepack" status --server "$server" --json 2>/dev/null |
        jq '.ready and ([.nodes[].role] | index("speculator") != null)')" = true ]
}

start_cluster() { # start_cluster FLAGS...
    setsid "$bin/forepack" up --port "$port" --http-port "$http_port" "$@" >"$log" 2>&1 </dev/null &
    cluster=$!
    for _ in $(seq 600); do
        if ready; then return; fi
        kill -0 "$cluster" 2>/dev/null || { cat "$log" >&2; exit 1; }
        sleep 0.1
    done
    fail "the cluster was not ready after 60 s"
}

# --- questions about documents

ask() { # ask ROW-FILE OUTPUT-FILE FLAGS...
    local row=$1 output=$2
    shift 2
    jq -rj .prompt "$row" >"$work/prompt"
    "$bin/forepack" generate --server "$server" --prompt-file "$work/prompt" --max-tokens 64 --json "$@" >"$output" ||
        fail "a request was not answered"
}

row_format='%-40s | %-6s %6s | %-6s %5s %6s | %-6s %5s %6s\n'

print_table_head() {
    echo "kept: share of the prompt's tokens that the main model reads; the last 128 are always kept"
    printf 'ms:   time to first token (TTFT)\n\n'
    printf '%-40s | %-13s | %-19s | %s\n' "" "all tokens" "quality 0.99" "keep rate 0.3"
    # shellcheck disable=SC2059
    printf "$row_format" question answer ms answer kept ms answer kept ms
}

# Prints a row of the table for the answers in full, quality and rate, and appends it to rows.
print_row() {
    jq -c -s --slurpfile row "$work/row" '
        def trim: gsub("^\\s+|\\s+$"; "");
        ($row[0].answer | trim) as $expected |
        {question: ($row[0].prompt | trim | split("\n") | map(select(startswith("Question: "))) | last | ltrimstr("Question: ")),
         runs: map({right: ((.text | trim) == $expected), kept: (.usage.kept_tokens / .usage.prompt_tokens),
                    ttft: .timing.ttft_ms})}' "$work/full" "$work/quality" "$work/rate" | tee -a "$work/rows" |
        jq -r 'def answer: if .right then "right" else "wrong" end;
               def tenths: . * 10 | round | "\(. / 10 | floor).\(. % 10)";
               [(.question | if length > 40 then .[0:38] + ".." else . end), (.runs[0] | answer, (.ttft | tenths)),
                (.runs[1:][] | answer, "\(.kept * 100 | round) %", (.ttft | tenths))] | @tsv' |
        while IFS=$'\t' read -r -a cells; do
            # shellcheck disable=SC2059
            printf "$row_format" "${cells[@]}"
        done
}

print_sums() {
    jq -r -s '
        def median($i): map(.runs[$i].ttft) | sort | .[length / 2 | floor] * 10 | round | "\(. / 10 | floor).\(. % 10) ms";
        def right($i): map(select(.runs[$i].right)) | length;
        "right answers:  \(right(0)) of \(length) with all tokens kept, \(right(1)) at quality 0.99, \(right(2)) at keep rate 0.3",
        "median TTFT:    \(median(0)) with all tokens kept, \(median(1)) at quality 0.99, \(median(2)) at keep rate 0.3"' \
        "$work/rows"
    jq -r '"accuracy on \(.documents) unseen documents of \(.tokens) tokens, measured earlier:\n" +
        "                \(.accuracy.full * 1000 | round / 10) % with all tokens kept, " +
        "\(.accuracy["0.3"] * 1000 | round / 10) % at keep rate 0.3 (all classes of questions)"' \
        "$pair/accuracy.json"
}

# Each question is asked three times; the prefix cache would speed up the second and the third.
start_cluster --no-enable-prefix-caching
echo "A router, a worker group and a speculator run the demo models. Each question is about a document."

# A warm-up, so that the first question is not measured with cold caches.
head -n 1 "$pair/prompts.jsonl" >"$work/row"
ask "$work/row" "$work/warm" --prefill off
ask "$work/row" "$work/warm" --prefill on

print_table_head
while read -r line; do
    printf '%s\n' "$line" >"$work/row"
    ask "$work/row" "$work/full" --prefill off
    ask "$work/row" "$work/quality" --prefill on
    ask "$work/row" "$work/rate" --prefill on --keep-rate 0.3
    print_row
done < <(head -n "$n_prompts" "$pair/prompts.jsonl")
echo
print_sums

# --- kept tokens

score() { # score FLAGS...
    "$bin/forepack" score --server "$server" --prompt-file "$work/prompt" --keep-rate 0.3 "$@" 2>"$work/kept" ||
        { cat "$work/kept" >&2; fail "a prompt was not scored"; }
}

# On a terminal, `forepack score` marks kept tokens by colour; elsewhere it puts them between brackets.
print_picture() {
    jq -rj .prompt <(head -n 1 "$pair/prompts.jsonl") >"$work/prompt"
    printf '\nThe first document at keep rate 0.3. %s:\n\n' \
        "$([ -t 1 ] && echo "Kept tokens are green" || echo "Kept tokens are between [ and ]")"
    if [ -t 1 ]; then score; else score | fold -s -w 100; fi
    cat "$work/kept"
}

# A page has the head of the first document's page, and the body of each.
write_page() {
    local n=0
    while read -r line; do
        jq -rj .prompt <<<"$line" >"$work/prompt"
        score --html "$work/document.html"
        [ $((n++)) -gt 0 ] || sed '/^<h1>/,$d' "$work/document.html" >"$work/page.html"
        sed -n "/^<h1>/,\$p" "$work/document.html" | sed -e "s/^<h1>[^<]*/<h1>Document $n/" -e '$d' >>"$work/page.html"
    done < <(head -n "$n_prompts" "$pair/prompts.jsonl")
    echo '</body></html>' >>"$work/page.html"
    cp "$work/page.html" "$page"
}
print_picture
write_page
printf '\nA page with the kept tokens of every document: %s\n' "$page"

# --- a conversation: each turn has another document and a question about one of the documents so far

turn_format='%-40s | %-6s %9s %6s %8s %6s %7s\n'

take_turn() { # take_turn TURN QUESTION-ABOUT-DOCUMENT
    jq -c -s --slurpfile talk "$work/talk" --argjson turn "$1" --argjson about "$2" '
        [.[] | select(.task == "needle")] as $rows |
        ($rows[$turn].prompt | split("Question: ")[0] | .[0:2400]) as $text |
        ($rows[$about].prompt | split("\nQuestion: ") | last | rtrimstr("\nAnswer:")) as $question |
        {messages: ($talk[0] + [{role: "user", content: $text}, {role: "user", content: ("Question: " + $question)}])}' \
        "$pair/prompts.jsonl" >"$work/turn"
    rm -f "$work/said"
    "$bin/forepack" batch --server "$server" --input "$work/turn" --output "$work/said" --max-tokens 16 --prefill on \
        --keep-rate 0.3 2>/dev/null || fail "a turn was not answered"
    jq -c --slurpfile said "$work/said" '.messages + [{role: "assistant", content: $said[0].text}]' "$work/turn" >"$work/talk"
}

print_turn() { # print_turn QUESTION-ABOUT-DOCUMENT
    jq -r --slurpfile turn "$work/turn" --arg expected "$(jq -r -s --argjson about "$1" \
        '[.[] | select(.task == "needle")][$about].answer | ltrimstr(" ")' "$pair/prompts.jsonl")" '.usage as $u |
        [($turn[0].messages | last | .content | ltrimstr("Question: ") | .[0:40]),
         (if (.text | gsub("^\\s+|\\s+$"; "")) == $expected then "right" else "wrong" end),
         "\($u.kept_tokens)/\($u.prompt_tokens)", $u.frozen_tokens, $u.recalled_tokens, $u.cached_tokens,
         (.timing.ttft_ms * 10 | round | "\(. / 10 | floor).\(. % 10)")] | @tsv' \
        "$work/said" | while IFS=$'\t' read -r -a cells; do
            # shellcheck disable=SC2059
            printf "$turn_format" "${cells[@]}"
        done
}

kill "$cluster"
wait "$cluster" || true
start_cluster
printf '\nA conversation at keep rate 0.3; its tokens are those of all turns.\n'
printf 'frozen: kept by an earlier turn; recalled: pruned then and kept now; cached: not computed again\n\n'
# shellcheck disable=SC2059
printf "$turn_format" question answer kept frozen recalled cached ms
echo '[]' >"$work/talk"
for turn in 0 1 2 3; do
    about=$((turn ? turn - 1 : 0)) # the document of the previous turn
    take_turn $turn $about
    print_turn $about
done

if [ "$keep_running" = yes ]; then
    echo
    echo "The cluster keeps running, log in $log. Commands:"
    echo "  $bin/forepack generate --server $server --prompt-file FILE --prefill on"
    echo "  $bin/forepack chat --server $server"
    echo "  $bin/forepack status --server $server"
    echo "  curl http://127.0.0.1:$http_port/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"
    echo "Stop it: kill $cluster"
    cluster=
fi
