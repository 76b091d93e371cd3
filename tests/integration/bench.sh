#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forepack bench: every measurement runs on a tiny shape with random weights, and its JSON has the documented keys. No speed
# is asserted.
source "$(dirname "$0")/lib.sh"

shape=$source_dir/tests/data/shapes/tiny.json
quick=(--threads 1 --rounds 2 --min-ms 1 --probe-ms 5)

check_json() { jq -e "$2" "$1" >/dev/null || fail "$1: this does not hold: $2: $(cat "$1")"; }

# One process.
"$bin/forepack" bench engine --shape "$shape" --load dummy --prompt-tokens 16,100 --decode-tokens 3 --context 20 \
    --batch 1,3 --max-num-batched-tokens 64 --more-tokens 5 --score "${quick[@]}" --json >"$work/engine.json" \
    2>"$work/engine.log"
check_json "$work/engine.json" '[.[] | [.phase, .batch, .tokens]] == [["prefill",1,16], ["prefill",3,16],
    ["prefill",1,100], ["more",1,5], ["more",1,5], ["decode",1,3], ["decode",3,3], ["score",1,16], ["score",1,100]]'
check_json "$work/engine.json" '[.[] | select(.phase == "more") | .context] == [16, 100]'
check_json "$work/engine.json" 'all(.[]; has("phase") and has("tokens") and has("batch")
    and .tokens_per_s > 0 and .gflops > 0 and .gbytes_per_s > 0 and .peak_rss_mb > 0
    and .peak_gflops > 0 and .dram_gbytes_per_s > 0 and .share > 0 and (.probes | length) == 3
    and (.limit == "compute" or .limit == "memory") and .dtype == "bf16" and .ranks == 1)'
check_json "$work/engine.json" 'all(.[] | select(.phase == "score"); .over_plain > 0 and .look_ahead >= 1)'
# The look-ahead is shorter if the model's context ends.
"$bin/forepack" bench engine --shape "$shape" --load dummy --prompt-tokens 510,512 --decode-tokens 0 --batch 1 \
    --score "${quick[@]}" --json >"$work/full.json" 2>"$work/full.log"
check_json "$work/full.json" '[.[] | select(.phase == "score") | .look_ahead] | .[0] <= 3 and .[1] == 1'
grep -q 'prefill of 3 x 100 tokens skipped' "$work/engine.log" || fail "the skipped prefill is not reported"

# An int8 KV cache needs less memory traffic. The work of passes with drafts is not counted.
for kv in bf16 int8; do
    "$bin/forepack" bench engine --shape "$shape" --kv-cache-dtype $kv --prompt-tokens 0 --context 64 --decode-tokens 2 \
        --draft-tokens 1 --batch 2 "${quick[@]}" --json >"$work/kv-$kv.json" 2>"$work/kv-$kv.log"
    check_json "$work/kv-$kv.json" "[.[].phase] == [\"decode\", \"drafted\"]
        and all(.[]; .kv_dtype == \"$kv\" and .tokens_per_s > 0 and has(\"gflops\") == (.phase == \"decode\"))"
done
jq -e --slurpfile int8 "$work/kv-int8.json" '.[0].gbytes > $int8[0][0].gbytes' "$work/kv-bf16.json" >/dev/null ||
    fail "memory traffic of an int8 cache"

# The HTTP server alone.
"$bin/forepack" bench http --seconds 0.2 --connections 4 --streams 20 --events-per-s 50 --json >"$work/http.json"
check_json "$work/http.json" '[.[] | .measurement + " " + .transport] == ["requests plain", "requests tls", "connections plain",
    "connections tls", "connections, resumed tls", "streams plain", "streams tls"]'
check_json "$work/http.json" 'all(.[]; .p50_ms > 0 and .p99_ms >= .p50_ms and (.per_s > 0 or .lost == 0))'

# A group of two ranks, no probe, as a table and as JSON.
"$bin/forepack" bench engine --shape "$shape" --tp 2 --dtype f32 --prompt-tokens 16 --decode-tokens 2 --batch 1 \
    --threads 1 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$work/tp.json" 2>"$work/tp.log"
check_json "$work/tp.json" 'length == 2 and all(.[]; .ranks == 2 and .threads == 2 and .dtype == "f32"
    and .tokens_per_s > 0 and .peak_gflops == null and .share == null)'
"$bin/forepack" bench engine --shape "$shape" --pp 2 --dtype f32 --prompt-tokens 16 --decode-tokens 2 --batch 1 \
    --threads 1 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$work/pp.json" 2>"$work/pp.log"
# The work of two ranks together is the work of one rank.
"$bin/forepack" bench engine --shape "$shape" --dtype f32 --prompt-tokens 16 --decode-tokens 2 --batch 1 \
    --threads 1 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$work/one.json" 2>"$work/one.log"
for way in tp pp; do jq -e --slurpfile one "$work/one.json" '[.[] | .linear_gflop, .attention_gflop, .gbytes] ==
    [$one[0][] | .linear_gflop, .attention_gflop, .gbytes]' "$work/$way.json" >/dev/null || fail "work of two ranks, $way"; done
"$bin/forepack" bench engine --shape "$shape" --prompt-tokens 16 --decode-tokens 0 --batch 2 "${quick[@]}" \
    >"$work/table" 2>"$work/table.log"
grep -Eq '^prefill +2 +16 ' "$work/table" || fail "no row in the table: $(cat "$work/table")"

# Gemms alone, compared with oneDNN if its program was built. If it was not built, the table and the JSON say so and name the
# package.
"$bin/forepack" bench kernels --shape "$shape" --rows 1,33 "${quick[@]}" --json >"$work/kernels.json" 2>"$work/kernels.log"
check_json "$work/kernels.json" '[.[].m] == [1, 33] and all(.[]; .phase == "matmul" and .gflops > 0
    and .gbytes_per_s > 0 and .share > 0 and has("onednn_gflops")
    and [.products[].name] == ["qkv", "o", "gate_up", "down"] and all(.products[]; .gflops > 0))'
if [ -x "$bin/forepack-bench-onednn" ]; then
    check_json "$work/kernels.json" 'all(.[]; .onednn_gflops > 0)'
else
    check_json "$work/kernels.json" 'all(.[]; .onednn_gflops == null and (.onednn | contains("libdnnl-dev")))'
    "$bin/forepack" bench kernels --shape "$shape" --rows 1 "${quick[@]}" >"$work/kernels.table" 2>"$work/kernels.log"
    grep -q '^oneDNN: not built: install libdnnl-dev' "$work/kernels.table" || fail "no word of oneDNN: $(cat "$work/kernels.table")"
    echo "skipped: comparison with oneDNN, which was not found at build time"
fi

# Attention alone. The tiny shape has 4 heads and 2 KV heads of 16: an attention pair is 4 x 4 x 16 operations, a KV entry in bf16
# 2 x 2 x 16 x 2 bytes. A prompt of n tokens after c cached ones has n c + n (n + 1) / 2 pairs, in chunks of 64 too.
"$bin/forepack" bench kernels --attention --shape "$shape" --prompt-tokens 40,100 --cached-tokens 0,30 --max-num-batched-tokens 64 \
    --batch 1,70 --context 5,20 "${quick[@]}" --json >"$work/attention.json" 2>"$work/attention.log"
check_json "$work/attention.json" '[.[] | [.phase, .batch, .tokens, .context, .passes]] == [["attention_prefill",1,40,0,1],
    ["attention_prefill",1,40,30,1], ["attention_prefill",1,100,0,2], ["attention_prefill",1,100,30,2],
    ["attention_decode",1,1,5,1], ["attention_decode",70,1,5,1], ["attention_decode",1,1,20,1], ["attention_decode",70,1,20,1]]'
check_json "$work/attention.json" 'def near($x; $y): ($x - $y) * ($x - $y) < 1e-8 * $y * $y;
    all(.[]; .heads == 4 and .kv_heads == 2 and .head_size == 16 and .backend == "cpu" and .kv_dtype == "bf16" and .layers >= 1
    and near(.attention_gflop * 1e9; .batch * (.tokens * .context + .tokens * (.tokens + 1) / 2) * 256)
    and near(.gbytes * 1e9; .batch * (.context + .tokens + (if .passes == 2 then .context + 64 else 0 end)) * 128)
    and near(.gflops * .ms / 1e3; .attention_gflop) and near(.gbytes_per_s * .ms / 1e3; .gbytes)
    and .peak_gflops > 0 and .dram_gbytes_per_s > 0 and .share > 0 and (.probes | length) == 3
    and (.limit == "compute" or .limit == "memory"))'
for backend in cpu reference; do
    "$bin/forepack" bench kernels --attention --shape "$shape" --backend $backend --head-size 32 --kv-cache-dtype int8 \
        --prompt-tokens 20 --context 0 --threads 1 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$work/attention-$backend.json" \
        2>"$work/attention-$backend.log"
    check_json "$work/attention-$backend.json" "length == 1 and (.[0] | .backend == \"$backend\" and .head_size == 32
        and .kv_dtype == \"int8\" and .share == null and (.gbytes * 1e9 | round) == 20 * 2 * 2 * 36)"
done
"$bin/forepack" bench kernels --attention --shape "$shape" --prompt-tokens 0 --batch 3 --context 7 "${quick[@]}" >"$work/table" 2>"$work/table.log"
grep -Eq '^attention_decode +3 +1 +7 +1 ' "$work/table" || fail "no row in the table: $(cat "$work/table")"

# A cluster under load: open loop, closed loop, search, a trace; failures are counted by reason. The shape is tiny, with the
# demo model's tokenizer: the answers do not matter here.
jq '. + {hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
    head_dim: 16, max_position_embeddings: 512}' "$main_model/config.json" >"$work/shape.json"
start_up --workers 1 --speculators 1 --shape "$work/shape.json" --spec-shape "$work/shape.json"
nodes speculator 1 || fail "no speculator"
serve() {
    local name=$1
    shift
    "$bin/forepack" bench serve --server "$server" "$@" --json >"$work/$name.json" 2>"$work/$name.log" ||
        fail "bench serve $*: $(cat "$work/$name.log")"
}
for i in {1..5}; do
    printf '{"id":"p%d","prompt":"%s"}\n' "$i" "$(printf 'The ferry leaves at noon. %.0s' $(seq $((10 * i))))"
done >"$work/prompts.jsonl"
serve open --prompts "$work/prompts.jsonl" --qps 20,40 --hold-throughput 0.2 --requests 12 --max-tokens 4 --ignore-eos --prefill on --keep-rate 0.3 \
    --report "$work/serve.html"
check_json "$work/open.json" '[.levels[] | .qps, .requests, .completed] == [20, 12, 12, 40, 12, 12] and .highest_qps == 40
    and all(.levels[]; .failed == 0 and .held and .good_share == 1 and .output_tokens == 48 and .kept_tokens < .prompt_tokens
        and .ttft_ms_p50 > 0 and .ttft_ms_p50 <= .ttft_ms_p90 and .ttft_ms_p90 <= .ttft_ms_p99 and (.itl_ms_p50 == null or .itl_ms_p50 >= 0) and .throughput_share > 0.2 and .throughput_share <= 1
        and .e2e_ms_p99 >= .ttft_ms_p99 and .tpot_ms_p50 >= 0 and .requests_per_s > 0)'
grep -q '<svg' "$work/serve.html" || fail "no plot in the page"
serve closed --prompt-tokens 40,80 --concurrency 1,3 --requests 6 --max-tokens 5 --prefill off
check_json "$work/closed.json" '[.levels[] | .concurrency, .completed, .output_tokens, .prompt_tokens] ==
    [1, 6, 30, 360, 3, 6, 30, 360] and all(.levels[]; .qps == null) and .highest_qps == null'
if "$bin/forepack" bench serve --server "$server" --prompt-tokens 40 --concurrency 1 --duration 1 2>"$work/error"; then
    fail "a duration of a closed loop"
fi
grep -q 'give --requests' "$work/error" || fail "wrong reason: $(cat "$work/error")"
printf 'arrival_ms,prompt_tokens,output_tokens,prefix_blocks\n0,300,3,1 2\n40,9000,2,1\n4000,50,2,3\n90000,5,2,4\n' >"$work/trace.csv"
serve trace --trace "$work/trace.csv" --time-scale 0.01 --duration 0.5 --prefill off
check_json "$work/trace.json" '.clipped == 1 and ([.levels[] | .load, .completed, .output_tokens, .prompt_tokens] ==
    ["trace", 3, 7, 300 + 510 + 50])'
# No answer is complete within a millisecond: all requests are aborted, and the cluster frees them.
serve hopeless --prompt-tokens 300 --qps 100 --requests 10 --max-tokens 200 --timeout 0.001 --warm-up 0
check_json "$work/hopeless.json" '.levels[0] | .completed == 0 and .failures.timeout == 10 and .held == false'
wait_until 60 "the cluster has freed the aborted requests" all_returned
serve refused --prompt-tokens 30 --concurrency 2 --requests 4 --warm-up 0 --served-model-name other
check_json "$work/refused.json" '.levels[0] | .completed == 0 and .failures.NOT_FOUND == 4'
serve search --prompt-tokens 30 --qps 0.5 --search --requests 1 --timeout 0.000001 --warm-up 0
check_json "$work/search.json" '.highest_qps == null and (.levels | length) >= 3 and .levels[0].qps == 0.5 and .levels[1].qps == 0.25'
# Answers of 200 tokens at 2,000 requests/s queue up: all are complete, but the rate is not held.
serve behind --prompt-tokens 30 --max-tokens 200 --ignore-eos --qps 2000 --requests 300 --prefill off
check_json "$work/behind.json" '.highest_qps == null and (.levels[0] | .completed == 300 and .good_share == 1
    and .throughput_share < 0.98 and .held == false)'
serve word --prompt-tokens 30 --qps search --requests 1 --timeout 0.000001 --warm-up 0
check_json "$work/word.json" '.highest_qps == null and .levels[0].qps == 1 and .levels[1].qps == 0.5'
stop_up

# Right answers of the demo models: every policy at one keep rate, compared with everything kept.
prefill_quality() {
    "$bin/forepack" bench prefill-quality --prompt-tokens 300,512 --keep-rates 0.5 --chunk-tokens 32 --main "$main_model" --spec "$spec_model" \
        --json "$@" 2>>"$work/quality.log"
}
prefill_quality --documents 4 --report "$work/quality.html" >"$work/quality.json"
check_json "$work/quality.json" '[.[] | .policy][0:5] == ["everything", "importance", "oracle", "random", "positional"]
    and [.[] | .tokens] == [300, 300, 300, 300, 300, 512, 512, 512, 512, 512, null, null, null, null, null]
    and all(.[]; .task == "needle" and .score >= 0 and .score <= 1) and .[0].kept_ratio == 1 and .[10].score >= 0.5
    and .[10].documents == 8 and (.[11].kept_ratio as $kept | all(.[13:][]; .kept_ratio >= $kept))
    and all(.[11:][]; .kept_ratio > 0.5 and .kept_ratio < 0.85)'
grep -q '<svg' "$work/quality.html" || fail "no plot in the page"
# One prompt at a time and in parts gives the same answers.
prefill_quality --documents 2 --max-num-seqs 1 >"$work/part1.json"
prefill_quality --documents 2 --first 2 --max-num-batched-tokens 100 >"$work/part2.json"
jq -s 'map(map(.score * .documents | round)) | transpose | map(.[0] + .[1] == .[2])' \
    "$work/part1.json" "$work/part2.json" "$work/quality.json" >"$work/parts.json"
check_json "$work/parts.json" 'length == 15 and all'
prefill_quality --task all --documents 1 --form chat --policies importance --quality 0.9,1 >"$work/all.json"
check_json "$work/all.json" 'all(.[]; .form == "chat") and ([.[] | select(.policy == "quality") | .quality] | length == 36 and (unique == [0.9, 1]))
    and all(.[]; .keep_rate > 0 and .keep_rate <= 1 and (.quality != 1 or .keep_rate == 1)) and [.[] | select(.policy == "importance" and .tokens == 512) | .task]
    == ["needle", "facts", "two_hop", "count", "copy", "instruction"]'
# The words of the question find the fact; the other policies without a score do not.
"$bin/forepack" bench prefill-quality --prompt-tokens 512 --keep-rates 0.3 --chunk-tokens auto,0 --main "$main_model" --spec "$spec_model" \
    --policies bm25,perplexity,first,last --documents 8 --time --json >"$work/baselines.json" 2>>"$work/quality.log"
check_json "$work/baselines.json" '[.[] | [.policy, .chunk_tokens]] == [["everything",null], ["bm25","auto"], ["bm25",0],
    ["perplexity","auto"], ["perplexity",0], ["first","auto"], ["last","auto"]] and all(.[]; .ttft_ms > 0)
    and .[0].score >= 0.8 and .[1].score >= 0.8 and .[5].score < .[1].score and .[6].score < .[1].score'
"$bin/forepack" bench prefill-quality --prompt-tokens 512 --keep-rates 0.3 --chunk-tokens auto --main "$main_model" --spec "$spec_model" \
    --policies importance --documents 8 --positions contiguous --json >"$work/contiguous.json" 2>>"$work/quality.log"
check_json "$work/contiguous.json" 'all(.[]; .positions == "contiguous" and .ttft_ms == null) and .[1].kept_ratio < 0.7'
"$bin/forepack" bench prefill-quality --task ruler --prompt-tokens 1500 --documents 1 --keep-rates 0.3 --policies importance,oracle \
    --chunk-tokens auto --main "$main_model" --spec "$spec_model" --json >"$work/ruler.json" 2>>"$work/quality.log"
check_json "$work/ruler.json" '[.[] | select(.policy == "everything") | .task] == ["niah_single_1", "niah_single_2", "niah_single_3",
    "niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"]
    and length == 39 and all(.[]; .score >= 0 and .score <= 1 and (.policy == "everything" or .kept_ratio < 0.5))'
"$bin/forepack" bench prefill-quality --task ttft --shape "$work/shape.json" --spec-shape "$shape" --prompt-tokens 300,200 \
    --batch 1,3 --max-batch-tokens 600 --keep-rates 0.3 --look-aheads 2 --rounds 2 --json >"$work/ttft.json" 2>"$work/ttft.log"
check_json "$work/ttft.json" '[.[] | [.tokens, .batch]] == [[300, 1], [200, 1], [200, 3]] and all(.[]; .plain_ms > 0 and .ttft_ms > .score_ms
    and .speed_up > 0 and .bound > 0 and .bound_flops >= .bound and .share > 0 and .kept_share < 0.7)'
# Prompts under every policy: padded rows are counted, a page is written; a policy with other logits would fail the command.
printf '%s\n' 5 100 17 30 64 8 >"$work/lengths"
"$bin/forepack" bench prepack --shape "$shape" --load dummy --lengths "$work/lengths" --batch-size 2,4 --max-num-batched-tokens 128 \
    --threads 1 --rounds 2 --report "$work/prepack.html" --json >"$work/prepack.json" 2>"$work/prepack.log"
check_json "$work/prepack.json" '[.[] | [.policy, .batch_size, .rows]] == [
    ["padded",2,388], ["length-ordered",2,276], ["batch",2,224], ["dataset",2,224], ["none",2,224],
    ["padded",4,528], ["length-ordered",4,320], ["batch",4,224], ["dataset",4,224], ["none",4,224]]'
check_json "$work/prepack.json" 'all(.[]; .tokens == 224 and .prefill_ms_mean > 0 and has("prefill_ms_std")
    and .ttft_ms_mean > 0 and .peak_kv_mb > 0 and ((.pad_fraction - (1 - 224 / .rows)) | fabs) < 1e-5)'
check_json "$work/prepack.json" 'all(.[] | select(.policy == "batch"); .padded_memory_ratio > 1 and .largest_batch > 0)'
# Full bins run separately; only dataset is compared with them.
check_json "$work/prepack.json" 'all(.[]; has("full_bin_us_per_token") == (.policy == "dataset") and has("over_full_bin") == (.policy == "dataset"))
    and all(.[] | select(.policy == "dataset"); .full_bin_us_per_token > 0
    and ((.over_full_bin * .full_bin_us_per_token / .us_per_token - 1) | fabs) < 1e-4)'
grep -q '</svg>' "$work/prepack.html" || fail "no plot in the page"
"$bin/forepack" bench prepack --model "$main_model" --prompts "$prompts" --limit 3 --batch-size 3 \
    --policies dataset,none >"$work/prepack.table" 2>"$work/prepack.log"
grep -Eq '^dataset +3 ' "$work/prepack.table" || fail "no row in the table: $(cat "$work/prepack.table")"
grep -Eq '^dataset: time per token is [0-9.]+ times that of' "$work/prepack.table" || fail "no full bins: $(cat "$work/prepack.table")"

# Perplexity of the demo's small model on its own texts, with four dtypes.
"$bin/forepack" bench perplexity --model "$source_dir/deploy/demo-model/speculator" \
    --prompts "$source_dir/deploy/demo-model/prompts.jsonl" --limit 2 --dtype f32,bf16,int8,int8-g128 --threads 1 --json \
    >"$work/perplexity.json" 2>"$work/perplexity.log"
check_json "$work/perplexity.json" '[.[].dtype] == ["f32", "bf16", "int8", "int8-g128"] and .[0].over_first == 1
    and all(.[]; .texts == 2 and .tokens > 1000 and .perplexity > 1 and .over_first > 0
    and ((.nats_per_token | exp) / .perplexity | . > 0.999 and . < 1.001))'
# A whole router over HTTP: requests at a rate, and streams.
"$bin/forepack" bench router-http --model "$main_model" --core -1 --rate 50 --seconds 0.2 --concurrency 4 --json >"$work/http.json"
check_json "$work/http.json" '.[0].failed == 0 and .[0].p50_ms > 0 and .[0].router_cpu_us >= 0'
"$bin/forepack" bench router-http --model "$main_model" --core -1 --streams 20 --interval-ms 100 --seconds 0.5 --json >"$work/streams.json"
check_json "$work/streams.json" '.[0].lost == 0 and .[0].tokens_per_s > 20 and .[0].p50_ms > 0'
# Its live page, with a queue that does not move.
"$bin/forepack" bench router-page --model "$main_model" --core -1 --nodes 2 --queue 20 --pages 0,2 --seconds 1 --json >"$work/page.json"
check_json "$work/page.json" '[.[].pages] == [0, 2] and .[1].waiting == 20 and .[1].page_kb_per_s > 1 and .[1].router_cpu_percent < 100'

"$bin/forepack" bench router-grpc --model "$main_model" --core -1 --large-mb 8 --json >"$work/large.json"
check_json "$work/large.json" '.[0].calls == 3 and .[0].ended_max_ms > 0 and .[0].gap_p50_ms > 0'
"$bin/forepack" bench router-grpc --model "$main_model" --core -1 --at-once 5 --prompt text --prompt-tokens 200 --json >"$work/at_once.json"
check_json "$work/at_once.json" '.[0].calls == 5 and .[0].ended_max_ms > 0 and .[0].alone_p99_ms > 0'
"$bin/forepack" bench router-http --model "$main_model" --core -1 --tls --seconds 0.2 --concurrency 4 --json >"$work/tls.json"
check_json "$work/tls.json" '[.[] | .transport + " " + .measurement] == ["plain requests", "plain connections", "tls requests",
    "tls connections", "tls connections, resumed"] and all(.[]; .per_s > 0 and .p50_ms > 0)'

# Packing, and the router's core with simulated groups.
"$bin/forepack" bench router --lengths "$work/lengths" --queue 400,50 --capacity 128 --rounds 2 --json \
    --report "$work/router.html" >"$work/router.json"
check_json "$work/router.json" '[.[].queue] == [50, 400] and all(.[]; .bins >= .lower_bound and .lower_bound >= .bins_by_sum
    and .pack_ms >= 0 and .requests == .queue and .router_us_per_request > 0 and .bins_handed_out > 0 and .fill > 0.5
    and .samples >= 1 and .samples_proven <= .samples)'
# The same with few KV blocks, overdue requests and a shared prefix.
"$bin/forepack" bench router --lengths "$work/lengths" --queue 400 --rounds 1 --workers 3 --kv-blocks 40 --enable-prefix-caching \
    --shared-prefix-tokens 20 --max-wait-ms 10 --json >"$work/router-short.json"
check_json "$work/router-short.json" '.[0].requests == 400 and .[0].looks_per_request > 0 and .[0].looks_per_request < 40 and
    .[0].nodes_asked_per_bin >= 1 and .[0].nodes_asked_per_bin < 3 and .[0].node_visits_per_bin > 0 and .[0].node_kb > 0'
[ "$(grep -c '</svg>' "$work/router.html")" = 3 ] || fail "not three plots in the page"
grep -q '<tr><td>400</td>' "$work/router.html" || fail "no row of the longer queue in the page"
"$bin/forepack" bench router --lengths "$work/lengths" --queue 40 --rounds 1 >"$work/router.table"
grep -q '^40 waiting requests, bins of 2048 rows' "$work/router.table" || fail "no row: $(cat "$work/router.table")"
"$source_dir/bench/prepack.sh" --bin "$bin" --out "$work/prepack" --lengths "$work" --sets lengths --sizes 2 --limit 6 \
    --limit-1b 0 --shapes "$work/shapes" >"$work/page" 2>"$work/prepack.log" && fail "a missing shape was accepted"
mkdir "$work/shapes"
cp "$shape" "$work/shapes/llama-110m.json"
mv "$work/lengths" "$work/lengths.txt"
"$source_dir/bench/prepack.sh" --bin "$bin" --out "$work/prepack" --lengths "$work" --sets lengths --sizes "2 4" --limit 6 \
    --shapes "$work/shapes" >"$work/page" 2>"$work/prepack.log"
grep -q '^| 110m | lengths | 4 | ' "$work/page" || fail "no row in the page: $(cat "$work/page")"
grep -Eq '^\| lengths \| 2 (\| [0-9.]+ ± [0-9.]+, [0-9.]+ ){4}\|$' "$work/page" || fail "no times in the page: $(cat "$work/page")"

"$bin/forepack" bench perplexity --model "$source_dir/deploy/demo-model/main" --answers --threads 1 --json --limit 3 \
    --prompts "$source_dir/deploy/demo-model/prompts.jsonl" >"$work/answers.json" 2>"$work/answers.log"
check_json "$work/answers.json" '.[0].tokens >= 3 and .[0].tokens < 60 and .[0].perplexity < 2'

# Wrong usage: one line that names the error, exit code 2.
refused() {
    local text=$1 code=0
    shift
    "$bin/forepack" bench "$@" >"$work/out" 2>"$work/refused.log" || code=$?
    [ $code = 2 ] || fail "'$*' ended with $code: $(cat "$work/refused.log")"
    grep -qF -- "$text" "$work/refused.log" || fail "'$*' said: $(cat "$work/refused.log")"
}
refused "exactly one of --model DIR and --shape FILE" engine
refused "--batch '1,x': must be whole numbers from 1" engine --shape "$shape" --batch 1,x
refused "--prompt-tokens: a sequence has 600 KV entries, but the model's context is 512" \
    engine --shape "$shape" --prompt-tokens 600
refused "nothing to run" engine --shape "$shape" --prompt-tokens 0 --decode-tokens 0
refused "--cached-tokens 'x': must be whole numbers from 0" kernels --attention --shape "$shape" --cached-tokens x
refused "--kv-cache-dtype int8: with --dtype f32 K and V are f32" kernels --attention --shape "$shape" --dtype f32 --kv-cache-dtype int8
refused "nothing to measure" kernels --attention --shape "$shape" --prompt-tokens 0 --context 0
refused "no-such.json" engine --shape "$work/no-such.json"
refused "unknown measurement 'nonsense': must be one of engine" nonsense
refused "exactly one of --prompts F, --trace F and --prompt-tokens N" serve --qps 1
refused "give --qps or --concurrency" serve --prompt-tokens 5
refused "one of --qps and --concurrency" serve --prompt-tokens 5 --qps 1 --concurrency 1
refused "--qps '1,0': must be numbers from" serve --prompt-tokens 5 --qps 1,0
refused "--search: give --qps" serve --prompt-tokens 5 --concurrency 1 --search
refused "--prompt-tokens 100: must be 128 or more" prefill-quality --prompt-tokens 100
refused "--prompt-tokens 512: must be 1024 or more" prefill-quality --task vt --prompt-tokens 512
refused "--form chat: RULER's tasks have the plain form" prefill-quality --task vt --prompt-tokens 2048 --form chat
refused "must be SQuAD's" prefill-quality --task qa_1 --prompt-tokens 2048 --passages "$shape"
refused "--passages and --characters-per-token are for RULER's tasks" documents --passages "$shape"
refused "task cwe has no room in 1024 tokens" documents --task cwe --tokens 1024 --characters-per-token 2
refused "--policies 'oracle,best': must be importance, oracle, bm25" prefill-quality --policies oracle,best
refused "--tokens '100-300': must be a range A-B with 128 <= A <= B <= 1048576" documents --tokens 100-300
refused "a count document of 128 tokens has no room for what its question needs" documents --model "$main_model" --tokens 128 --task count --first 207 --count 1
refused "--pool-window 4: must be odd" prefill-quality --pool-window 4
refused "the model's context is 512 tokens, but 601 are needed" prefill-quality --task ttft --shape "$shape" --prompt-tokens 600
refused "--model DIR and --prompts FILE are required" perplexity --model "$source_dir/deploy/demo-model/speculator"
printf '{"prompt": "a"}\n{"prompt": 5}\n' >"$work/texts.jsonl"
refused "texts.jsonl:2: prompt: must be a string" \
    perplexity --model "$source_dir/deploy/demo-model/speculator" --prompts "$work/texts.jsonl"
refused "--stride 512: must be less than the window of 100" perplexity --window 100 --stride 512 \
    --model "$source_dir/deploy/demo-model/speculator" --prompts "$source_dir/deploy/demo-model/prompts.jsonl"
cp -r "$source_dir/deploy/demo-model/speculator" "$work/one"
jq '.max_position_embeddings = 1' "$source_dir/deploy/demo-model/speculator/config.json" >"$work/one/config.json"
refused "the model's context is 1 token" perplexity --model "$work/one" --prompts "$source_dir/deploy/demo-model/prompts.jsonl"
refused "the header lacks the column output_tokens" serve --trace <(echo arrival_ms,prompt_tokens)
refused "tiny.json" engine --shape "$shape" --tp 3 --prompt-tokens 16 # 2 KV heads
prepack=(prepack --shape "$shape" --lengths)
refused "exactly one of --prompts F.jsonl and --lengths F" prepack --shape "$shape"
refused "must be some of padded, length-ordered, batch, dataset, none" "${prepack[@]}" "$work/lengths.txt" --policies padded,nothing
refused "--prompts needs the tokenizer of --model" prepack --shape "$shape" --prompts "$prompts"
echo 600 >"$work/long"
refused "prompt 1 has 600 tokens, but the model's context is 512" "${prepack[@]}" "$work/long"
echo seven >"$work/long"
refused "long:1: must be one whole number" "${prepack[@]}" "$work/long"
refused "--report $work/no/page.html" "${prepack[@]}" "$work/lengths.txt" --report "$work/no/page.html"
refused "--lengths F is required" router
refused "--report $work/no/page.html" router --lengths "$work/lengths.txt" --report "$work/no/page.html"
refused "--queue '0': must be whole numbers from 1" router --lengths "$work/lengths.txt" --queue 0
refused "4 KV blocks of 16 tokens are too few for a prompt of 100 tokens and 8 of answer" \
    router --lengths "$work/lengths.txt" --kv-blocks 4

# The page that bench/serve.sh makes of earlier results: the gain with both bounds, and a rate that was never held.
mkdir "$work/rates"
rate() { # rate NAME QPS KEPT
    jq -n --argjson qps "$2" --argjson kept "$3" '{highest_qps: $qps, levels: [{qps: 9999}, {qps: $qps, kept_tokens: $kept,
        prompt_tokens: 1000, ttft_ms_p50: 1, ttft_ms_p90: 2, ttft_ms_p99: 3}]}' >"$work/rates/serve-rate-$1.json"
}
rate plain 40 1000
rate keep-0.3-one 80 400
rate keep-0.1-two null 100
"$source_dir/bench/serve.sh" --bin "$bin" --out "$work/rates" --only nothing >"$work/rates/page"
for row in '| plain | 40 | 1 | - | - | - | 100 % | 1 / 2 / 3 |' '| keep-0.3-one | 80 | 2 | 2.05 | 97.4 % | 2.5 | 40 % | 1 / 2 / 3 |' \
    '| keep-0.1-two | - | - | - | - | - | - | - / - / - |'; do
    grep -qx "$row" "$work/rates/page" || fail "no row $row in the page: $(cat "$work/rates/page")"
done

# forepack plan: more ranks need less memory each; a model that does not fit ends with exit code 1.
plan=("$bin/forepack" plan --shape "$source_dir/bench/shapes/llama-3.1-405b.json" --dtype int8 --json)
"${plan[@]}" --tp 8 >"$work/plan-8.json"
"${plan[@]}" --tp 16 --spec-shape "$source_dir/bench/shapes/llama-3.1-8b.json" --keep-rate 0.1 >"$work/plan-16.json"
check_json "$work/plan-16.json" '.fits and .gpus_needed == 8 and .kv_blocks > 0 and .weights > 4e11
    and .speed_up_bound > 8 and .speed_up_bound < 10'
jq -e --slurpfile eight "$work/plan-8.json" '.weights_mib < $eight[0].weights_mib and .kv_mib > $eight[0].kv_mib' \
    "$work/plan-16.json" >/dev/null || fail "the plan for 16 GPUs compared with the one for 8"
code=0
"${plan[@]}" --tp 4 >"$work/plan-4.json" || code=$?
[ $code = 1 ] || fail "exit code $code of a plan that does not fit"
check_json "$work/plan-4.json" '.fits == false and .kv_blocks == 0'
"$bin/forepack" plan --shape "$source_dir/bench/shapes/llama-3.1-405b-fp8.json" --tp 8 --gpu h200 --json >"$work/plan-h200.json"
check_json "$work/plan-h200.json" '.weights_mib > 57500 and .weights_mib < 58700 and .kv_mib > 67000
    and .decode_bound_ms > 12.5 and .decode_bound_ms < 12.7 and .decode_ms > 20 and .decode_ms < 24 and .prefill_s > 1'
# Stages have their layers, the first one the embedding, the last one the head. Two stages of 8 have twice the KV tokens
# of 16 tensor-parallel ranks, which store each KV head twice.
"$bin/forepack" plan --shape "$source_dir/bench/shapes/llama-3.1-405b-fp8.json" --tp 8 --pp 2 --gpu h100 --json >"$work/plan-pp.json"
check_json "$work/plan-pp.json" '.gpus == 16 and .fits and [.stages[].layers] == [64, 62] and .weights_mib < 31000
    and (.stages[0].kv_mib / .stages[1].kv_mib * 62 / 64 - 1 | fabs) < 1e-3'
"$bin/forepack" plan --shape "$source_dir/bench/shapes/llama-3.1-405b-fp8.json" --gpus 16 --gpu h100 --json >"$work/plan-ways.json"
check_json "$work/plan-ways.json" '([.divisions[] | select(.tp == 16 and .pp == 1)][0]) as $one
    | ([.divisions[] | select(.tp == 8 and .pp == 2)][0]) as $two | $two.kv_tokens > 1.8 * $one.kv_tokens
    and $two.ttft_s_alone < 1.5 * $one.ttft_s_alone and $two.bubble < 0.03 and ([.divisions[] | select(.best)] | length) == 1'
# The smallest cluster for a load: more load needs more groups, each rate has a plan, and speculators save groups.
size() { # NAME OPTIONS...
    local code=0
    "$bin/forepack" plan --shape "$source_dir/bench/shapes/llama-3.1-8b.json" --json "${@:2}" >"$work/size-$1.json" 2>"$work/error" || code=$?
    echo $code
}
sized=(--gpu h100 --tp 1 --prompt-tokens 8000 --output-tokens 20 --ttft-p95 1 --itl-p95 0.2)
[ "$(size rates "${sized[@]}" --qps 1,6)" = 0 ] || fail "no plan: $(cat "$work/error")"
check_json "$work/size-rates.json" '(.[0].clusters[0] | .groups == 1 and .gpus == 1) and (.[1].clusters[0].groups >= 2)
    and all(.[]; .limits_kept and .clusters[0].ttft_s_p95 <= 1 and .clusters[0].itl_s_p95 <= 0.2 and (.effects | length) == 6)
    and (.[1].clusters[0].with_fewer_groups | test("TTFT p95 is"))'
[ "$(size spec "${sized[@]}" --qps 6 --spec-shape "$source_dir/bench/shapes/llama-3.2-1b.json" --keep-rate 0.1)" = 0 ] ||
    fail "no plan with speculators: $(cat "$work/error")"
check_json "$work/size-spec.json" '.clusters[1] | .possible and .speculators >= 1 and .groups <= 2'
[ "$(size impossible "${sized[@]:0:8}" --qps 1 --ttft-p95 0.05)" = 1 ] || fail "an impossible limit: $(cat "$work/error")"
check_json "$work/size-impossible.json" '.limits_kept == false and .ttft_s_p95_limit > 0.2 and .clusters[0].possible
    and (.reason | test("no number of GPUs keeps --ttft-p95 0.05 s: one request alone takes 0.[23][0-9]* s"))'
[ "$(size trace --gpu h100 --tp 1 --trace "$source_dir/tests/sim/plan.csv")" = 0 ] || fail "no plan of a trace: $(cat "$work/error")"
check_json "$work/size-trace.json" '.clusters[0].groups == 1 and .prompt_tokens > 1'
shape_8b=(plan --shape "$source_dir/bench/shapes/llama-3.1-8b.json")
refused_plan() { # SENTENCE OPTIONS...
    local code=0
    "$bin/forepack" "${shape_8b[@]}" "${@:2}" >"$work/out" 2>"$work/error" || code=$?
    [ $code = 2 ] && grep -qF -- "$1" "$work/error" || fail "plan ${*:2}: exit code $code, not '$1': $(cat "$work/error")"
}
refused_plan "--gpu 'h300': must be one of h100|h200|b200|a100|l40s" --gpu h300
refused_plan "give one of --gpu and --gpu-mib" --gpu h100 --gpu-mib 40000
refused_plan "--qps: give --gpu too" --qps 1
refused_plan "--gpus: give --gpu too" --gpus 8
refused_plan "--gpus 16: --tp and --pp must divide them" --gpus 16 --gpu h100 --tp 4 --pp 2
refused_plan "--gpus 16: --tp and --pp must divide them" --gpus 16 --gpu h100 --tp 3
refused_plan "pp-layers 16,15: these are 31 layers" --gpus 16 --gpu h100 --pp 2 --pp-layers 16,15
refused_plan "--pp: a load is planned for groups of one stage" --gpu h100 --pp 2 --qps 1
refused_plan "--pp-layers: give --pp too" --pp-layers 16,16
refused_plan "pp-layers 16,15: these are 31 layers, but the model has 32" --pp 2 --pp-layers 16,15
refused_plan "pp 33: the model has 32 layers" --pp 33
refused_plan "limits and lengths of a load need --qps or --trace" --gpu h100 --ttft-p95 1
refused_plan "give one of --trace and --prompt-tokens" --gpu h100 --trace x.csv --prompt-tokens 5
refused_plan "--gpu a100 has no FP8" --gpu a100 --dtype fp8 --qps 1
refused_plan "--prompt-tokens: give one length, or --qps" --prompt-tokens 5,6
refused_plan "a request of 5000001 tokens exceeds the model's context of 131072" --gpu h100 --qps 1 --prompt-tokens 5000000
code=0
"$bin/forepack" plan --shape "$source_dir/bench/shapes/llama-3.1-405b.json" --gpu l40s --qps 1 >"$work/out" 2>"$work/error" || code=$?
[ $code = 2 ] && grep -qF "fits no group of up to 8 l40s GPUs" "$work/error" || fail "405B on L40S: $code, $(cat "$work/error")"
# The rows with logits of a worker: --max-num-seqs and those for drafts.
"$bin/forepack" plan --shape "$source_dir/bench/shapes/llama-3.1-8b.json" --max-num-seqs 32 >"$work/plan.txt"
grep -q "a pass of 2048 rows, logits of 96$" "$work/plan.txt" || fail "the logit rows of a worker: $(cat "$work/plan.txt")"
