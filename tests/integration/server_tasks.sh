#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# RULER's and LongBench's tasks against OpenAI-compatible servers: a cluster of the demo pair, and a server with TLS and an API key
# that answers from the prompt.
. "$(dirname "$0")/lib.sh"
ruler=("$source_dir/bench/ruler.py" --forepack "$bin/forepack" --seed 5)

check_json() { jq -e "$2" "$1" >/dev/null || fail "$1: this does not hold: $2: $(cat "$1")"; }
refused() { # SENTENCE COMMAND...
    local sentence=$1 code=0
    "${@:2}" >"$work/refused.log" 2>&1 || code=$?
    [ $code != 0 ] || fail "not refused: ${*:2}"
    grep -qF -- "$sentence" "$work/refused.log" || fail "no sentence '$sentence': $(cat "$work/refused.log")"
    ! grep -q Traceback "$work/refused.log" || fail "a traceback: $(cat "$work/refused.log")"
}

# --- a cluster
start_up --workers 1 --tp 1 --speculators 1
"${ruler[@]}" --server-url "http://127.0.0.1:$http_port/v1" --tokenizer "$main_model" --task vt,qa_1 --prompt-tokens 2048 \
    --documents 2 --keep-rates 0.5,0.3 --qualities 0.9 --endpoint completions --json >"$work/cluster.json"
check_json "$work/cluster.json" '[.[] | [.task, .policy, .keep_rate]] == [["vt","everything",1], ["vt","importance",0.5],
    ["vt","importance",0.3], ["vt","quality",null], ["qa_1","everything",1], ["qa_1","importance",0.5], ["qa_1","importance",0.3],
    ["qa_1","quality",null]]'
check_json "$work/cluster.json" '.[0].kept_ratio == 1 and .[1].kept_ratio > 0.5 and .[2].kept_ratio > 0.3
    and .[2].kept_ratio < .[1].kept_ratio and .[1].kept_ratio < 0.8 and all(.[]; .documents == 2 and .ttft_ms > 0
    and .score >= 0 and .score <= 1 and .tokens == 2048 and .prompt_tokens > 1800 and .prompt_tokens <= 2048)'
stop_up

# --- a server that reads
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$work/key.pem" -out "$work/certificate.pem" 2>/dev/null
cat "$work/certificate.pem" "$work/key.pem" >"$work/both.pem"
echo secret-1 >"$work/api.key"
echo other >"$work/other.key"
start reading python3 "$source_dir/tests/integration/reading_server.py" "$work/both.pem" secret-1
wait_until 20 "the server has a port" test -s "$work/reading.log"
url=https://127.0.0.1:$(head -1 "$work/reading.log")/v1
access=(--server-url "$url" --tls-ca "$work/certificate.pem" --api-key-file "$work/api.key")

"${ruler[@]}" "${access[@]}" --prompt-tokens 2048 --documents 2 --json >"$work/reading.json"
check_json "$work/reading.json" '[.[].task] == ["niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1",
    "niah_multikey_2", "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2", "ruler"]'
check_json "$work/reading.json" 'all(.[:9][]; .score == 1) and all(.[9:13][]; .score == 0) and .[13].score > 0.69
    and .[13].score < 0.7 and .[13].documents == 26 and all(.[]; .policy == "everything" and .kept_ratio == 1)'
"${ruler[@]}" "${access[@]}" --prompt-tokens 1024 --documents 1 --task niah_multivalue --keep-rates 0.25 >"$work/table"
grep -Eq '^niah_multivalue +1024 tokens \| importance 0.25 +\| kept   25 % \| score 100.0 ' "$work/table" ||
    fail "the table: $(cat "$work/table")"

refused "answered 401" "${ruler[@]}" "${access[@]}" --api-key-file "$work/other.key" --prompt-tokens 1024 --documents 1 --task vt
refused "certificate verify failed" "${ruler[@]}" --server-url "$url" --prompt-tokens 1024 --documents 1 --task vt
refused "Connection refused" "${ruler[@]}" --server-url http://127.0.0.1:1/v1 --prompt-tokens 1024 --documents 1 --task vt
refused "must begin with http" "${ruler[@]}" --server-url 127.0.0.1:1 --task vt
refused "invalid tasks value" "${ruler[@]}" "${access[@]}" --task vt,nonsense
refused "RULER's tasks have 1024 to" "${ruler[@]}" "${access[@]}" --prompt-tokens 1000

# --- LongBench, from a folder with a row for each kind of score
packages=$source_dir/bench/longbench.txt
. "$(dirname "$0")/venv.sh"
mkdir "$work/data"
row() { # SET ANSWER RIGHT CLASSES
    jq -cn --arg answer "$2" --arg right "$3" --argjson classes "$4" '{input: "Which {one}?", answers: ["never", $right],
        context: "Braces {input} and a text. The answer is <\($answer)>", all_classes: $classes}' >>"$work/data/$1.jsonl"
}
row hotpotqa "The old pier, north." "old north pier" null            # all words of the right answer, without the article
row gov_report "one two three four" "one four five" null             # 2 of 4 and 3 words, in order
row trec "Description of something" "Description of something" '["Description", "Description of something", "Other"]'
row trec "Other, or Description of something" "Other" '["Description of something", "Other"]'
row passage_count "3 or 4, or 3" "3" null
row passage_retrieval_en "Paragraph 12" "Paragraph 12" null
row multifieldqa_zh "北京大学" "北京" null
row lcc $'# a comment\nreturn x + 1' "return x + 2" null
row samsum $'one two\nthree' "one two" null
longbench=("$python" "$source_dir/bench/longbench.py" --data "$work/data" "${access[@]}")
"${longbench[@]}" --keep-rates 0.5 --json >"$work/longbench.json"
check_json "$work/longbench.json" '[.[] | select(.policy == "everything") | {(.task): (.score * 1000 | round)}] | add == {
    "multifieldqa_zh": 667, "hotpotqa": 1000, "gov_report": 571, "trec": 750, "samsum": 1000, "passage_count": 667,
    "passage_retrieval_en": 1000, "lcc": 917, "single-document": 667, "multi-document": 1000, "summaries": 571, "few-shot": 875,
    "synthetic": 833, "code": 917, "longbench": 821}'
check_json "$work/longbench.json" 'all(.[] | select(.policy == "importance"); .keep_rate == 0.5 and .kept_ratio > 0.4)
    and (.[] | select(.task == "trec" and .policy == "everything") | .documents) == 2'
echo '{"input": "a", "context": "b", "answers": []}' >"$work/data/musique.jsonl"
refused "musique.jsonl:1: answers must be texts" "${longbench[@]}"
refused "--sets nonsense: no such file" "${longbench[@]}" --sets nonsense
refused "$work/none: No such file" "${longbench[@]}" --data "$work/none"
echo "server_tasks: all passed"
