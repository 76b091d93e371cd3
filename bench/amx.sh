#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how near an AMX machine comes to its goals, in one run of under five minutes on two of its cores, and prints a table:
# gemms and attention alone, prefill, decode, scoring and TTFT of random weights, next to their goals. On a machine without AMX
# the shares refer to the rate of its vector units, and the run takes longer. Nothing else should run.
# Usage: bench/amx.sh [--out DIR] [--bin DIR] [--threads N] [--shapes DIR] [--long N]
#   --out DIR     folder for the JSON files, which are replaced (default bench-out/amx)
#   --bin DIR     folder of the programs (default build/release/bin)
#   --threads N   compute threads (default: all cores)
#   --shapes DIR  folder with llama-3.2-1b.json and llama-110m.json (default bench/shapes)
#   --long N      length of the longest prompt, left out when 150 seconds have passed before it (default 16384)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

out=bench-out/amx bin=$here/../build/release/bin threads=$(nproc) shapes=$here/shapes long=16384
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --threads | --shapes | --long)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    *)
        echo "unknown option '$1': see the head of $0" >&2
        exit 2
        ;;
    esac
done
mkdir -p "$out"
rm -f "$out"/*.json
big=$shapes/llama-3.2-1b.json small=$shapes/llama-110m.json

# measure NAME ARGUMENTS...: writes one JSON file.
measure() {
    local file=$out/$1.json
    shift
    echo "$SECONDS s: bench $*" >&2
    "$bin/forepack" bench "$@" --threads "$threads" --json >"$file"
}

for dtype in bf16 int8; do
    measure "gemms-$dtype" kernels --shape "$big" --dtype "$dtype" --rows 512,1,32 --no-onednn --probe-ms 300
done
for size in 64 128; do
    measure "attention-$size" kernels --attention --shape "$big" --head-size "$size" --prompt-tokens "$long" --context 0 \
        --rounds 2 --probe-ms 300
done
steps=(--context 64 --decode-tokens 16 --rounds 3 --probe-ms 300 --min-ms 100)
measure engine-bf16 engine --shape "$big" --dtype bf16 --prompt-tokens 512 --batch 1,32 "${steps[@]}"
measure engine-int8 engine --shape "$big" --dtype int8 --prompt-tokens 512 --batch 1 "${steps[@]}"
once=(--rounds 1 --min-ms 0)
measure score engine --shape "$big" --dtype bf16 --prompt-tokens 4096 --batch 1 --decode-tokens 0 --score "${once[@]}"
measure ttft prefill-quality --task ttft --shape "$big" --spec-shape "$small" --dtype bf16 --prompt-tokens 4096 \
    --keep-rates 0.1 --look-aheads 8 --chunk-tokens 32 --rounds 1
if [ "$SECONDS" -lt 150 ]; then
    measure long engine --shape "$big" --dtype bf16 --prompt-tokens "$long" --batch 1 --decode-tokens 0 "${once[@]}"
fi

for file in "$out"/*.json; do
    jq --arg name "$(basename "$file" .json)" '{($name): .}' "$file"
done | jq -rs --arg seconds "$SECONDS" 'add | . as $all
    | def round_to($digits): pow(10; $digits) as $p | (. * $p | round) / $p;
      def percent: . * 100 | round_to(1) | "\(.) %";
      def of($limit): if $limit == "memory" then "memory" elif $limit == "compute" then "the peak" else "the bound" end;
      def row($what; $file; filter; measured; $goal; reached):
          first(($all[$file] // [])[] | select(filter)) // null
          | if . == null then "| \($what) | not measured | | \($goal) | |" else
                "| \($what) | \(measured) | \(if .share == null then "" else "\(.share | percent) of \(of(.limit))" end) | \($goal) | "
                + (if $goal == "" then "" elif reached then "yes" else "no" end) + " |" end;
      def gemms($dtype; $m; $goal):
          row("gemms alone, 1B, \($dtype), M = \($m)"; "gemms-\($dtype)"; .m == $m; "\(.gflops | round) G\(if $dtype == "int8" then "OP" else "FLOP" end)/s";
              if $goal then $goal | percent else "" end; .share >= $goal);
      def attention($size; $goal):
          row("attention alone, head size \($size)"; "attention-\($size)"; .phase == "attention_prefill";
              "\(.gflops | round) GFLOP/s, \(.tokens) tokens"; $goal | percent; .share >= $goal);
      def prefill($what; $file; $tokens; $goal; reached):
          row("prefill of \($what), 1B"; $file; .phase == "prefill" and .batch == 1 and ($tokens == null or .tokens == $tokens);
              "\(.tokens_per_s | round) tokens/s, \(.ms / 1000 | round_to(2)) s"; $goal; reached);
      def decode($batch; $dtype; $goal; reached):
          row("decode of \($batch), 1B, \($dtype)"; "engine-\($dtype)"; .phase == "decode" and .batch == $batch;
              "\(.tokens_per_s | round_to(1)) tokens/s"; $goal; reached);
      ($all["gemms-bf16"][0]) as $probe | ($all["gemms-int8"][0]) as $bytes
    | "\($probe.threads) threads, \($seconds) s. The machine probe: \($probe.peak_gflops | round) GFLOP/s by \($probe.instruction), \($bytes.peak_gflops | round) GOP/s by \($bytes.instruction), memory \($probe.dram_gbytes_per_s | round_to(1)) GB/s.",
      "", "| row | measured | share | goal | reached |", "| --- | --- | --- | --- | --- |",
      gemms("bf16"; 512; 0.42), gemms("int8"; 512; 0.38),
      (("bf16", "int8") as $dtype | (1, 32) as $m | gemms($dtype; $m; null)),
      attention(64; 0.15), attention(128; 0.28),
      prefill("512, bf16"; "engine-bf16"; 512; "38 %"; .share >= 0.38),
      prefill("512, int8"; "engine-int8"; 512; "33 %"; .share >= 0.33),
      prefill("4,096, bf16"; "score"; 4096; "2.5 x of 11.4 s at b6592fb"; .ms <= 11400 / 2.5),
      prefill("the longest prompt, bf16"; "long"; null; "16,384: 3.4 x of 122 s at b6592fb"; .tokens == 16384 and .ms <= 122000 / 3.4),
      decode(1; "bf16"; "92 %"; .share >= 0.92), decode(1; "int8"; "92 %"; .share >= 0.92),
      decode(32; "bf16"; "1.5 x 216 tokens/s"; .tokens_per_s >= 1.5 * 216),
      row("scoring 4,096 with look-ahead 8"; "score"; .phase == "score"; "\(.over_plain | round_to(3)) of prefill and 7 steps";
          "at most 1.05"; .over_plain <= 1.05),
      row("TTFT of 4,096, 1B with 110M, keep rate 0.1"; "ttft"; .task == "ttft"; "\(.ttft_ms / 1000 | round_to(2)) s of \(.plain_ms / 1000 | round_to(2)) s whole";
          "90 % of the bound"; .share >= 0.9)' | tee "$out/amx.md"
