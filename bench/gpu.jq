# SPDX-License-Identifier: Apache-2.0
# Makes the table of bench/gpu.sh from {"prefill": [rows], ..., "steps": [{step, ok, said}], "layers": of the 70B model}. A
# figure without rows shows the result of its step instead.

. as $all
| def round_to($digits): pow(10; $digits) as $p | (. * $p | round) / $p;
  def percent: if . == null then null else "\(. * 100 | round_to(1)) %" end;
  def shown($digits): if . == null then null else round_to($digits) | tostring end;
  def over($a; $b): if $a == null or $b == null or $b == 0 then null else $a / $b end;
  def row($file; $phase; $batch; $tokens):
    first(($all[$file] // [])[] | select(.phase == $phase and .batch == $batch and ($tokens == null or .tokens == $tokens))) // null;
  # Operations and bytes per second, over those of the machine probe.
  def compute_share: if . == null then null else over(.gflops; .peak_gflops) end;
  def memory_share: if . == null then null else over(.gbytes_per_s; .dram_gbytes_per_s) end;
  # Attention alone, by difference: the attention operations that a prompt of 16,384 tokens has more than 16 prompts of 1,024,
  # over the time that it takes longer.
  def attention:
    row("prefill"; "prefill"; 1; 16384) as $long | row("packed"; "prefill"; 16; 1024) as $packed
    | if $long == null or $packed == null or $long.ms <= $packed.ms then null
      else over(($long.attention_gflop - $packed.attention_gflop) / (($long.ms - $packed.ms) / 1000); $long.peak_gflops) end;
  def cell($text): $text | gsub("\\|"; "/");
  def missing($step): first($all.steps[] | select(.step == $step and (.ok | not)) | cell(.said)) // "not measured";
  def line($step; $what; $goal; $value; $shown; $ok):
    "| \($what) | \($goal) | \(if $value == null then missing($step) else $shown end) | \(if $value == null then "" elif $ok then "yes" else "no" end) |";
  def share($step; $what; $goal; $value):
    line($step; $what; "at least \($goal * 100) %"; $value; ($value | percent); $value != null and $value >= $goal);
  row("packed"; "prefill"; 8; 1024) as $p8 | row("packed"; "prefill"; 16; 1024) as $p16
| row("score"; "score"; 1; 32768) as $score
| (first(($all.prepack // [])[] | select(.policy == "batch")) // null) as $batch
| (first(($all.prefill // $all.packed // $all.decode // [])[]) // {}) as $any
| "matrix limit \(over($any.peak_gflops; 1000) | shown(1) // "not measured") TFLOP/s in bf16, copy bandwidth \($any.dram_gbytes_per_s | shown(0) // "not measured") GB/s, measured on this machine",
  "",
  "| figure | goal | measured | reached |",
  "| --- | --- | --- | --- |",
  ($all.steps[] | select(.step == "build" or .step == "tests" or (.step | startswith("sanitizer")))
   | "| \(.step) | \(if .step == "build" then "" else "no failure" end) | \(cell(.said)) | \(if .ok then "yes" else "no" end) |"),
  share("packed"; "prefill 8B, 8 x 1,024 tokens in one pass, of the matrix limit"; 0.65; ($p8 | compute_share)),
  share("packed"; "prefill 8B, 16 x 1,024 tokens in one pass"; 0.65; ($p16 | compute_share)),
  share("prefill"; "prefill 8B, one prompt of 8,192"; 0.65; (row("prefill"; "prefill"; 1; 8192) | compute_share)),
  share("prefill"; "prefill 8B, one prompt of 16,384"; 0.65; (row("prefill"; "prefill"; 1; 16384) | compute_share)),
  ((8192, 16384) as $rows | (first(($all.products // [])[] | select(.m == $rows)) // null) as $row
   | share("products"; "gemms of 8B alone, \($rows) rows"; 0.9; ($row | compute_share))),
  share("prefill"; "attention alone at 16,384 tokens (by difference)"; 0.5; attention),
  share("decode"; "decode 8B, batch 1, of copy bandwidth"; 0.8; (row("decode"; "decode"; 1; null) | memory_share)),
  share("decode"; "decode 8B, batch 64, of copy bandwidth"; 0.7; (row("decode"; "decode"; 64; null) | memory_share)),
  line("prepack"; "padded over packed, batches of 64"; "at least 6"; $batch.padded_time_ratio; ($batch.padded_time_ratio | shown(2));
       $batch != null and $batch.padded_time_ratio >= 6),
  ((first(($all.transformers // [])[]) // null) as $padded
   | over($padded.us_per_token; $batch.us_per_token) as $value
   | if $padded == null and ([$all.steps[] | select(.step == "transformers")] == []) then empty
     else line("transformers"; "padded by Hugging Face transformers over packed, batches of 64"; "at least 6"; $value; ($value | shown(2));
               $value != null and $value >= 6) end),
  line("score"; "scoring 32,768 tokens, look-ahead 8, over its passes without importance"; "at most 1.05"; $score.over_plain;
       ($score.over_plain | shown(3)); $score != null and $score.over_plain <= 1.05),
  ((0.1, 0.3) as $rate | (first(($all.ttft // [])[] | select(.task == "ttft" and .keep_rate == $rate)) // null) as $row
   | line("ttft"; "TTFT at keep rate \($rate), 8B speculator for a 70B model cut to \($all.layers) layers, speed-up over its bound"; "at least 0.95";
          $row.share; ($row.share | shown(3)); $row != null and $row.share >= 0.95)),
  "",
  "| run | phase | batch | tokens | context | tokens/s | ms | spread | TFLOP/s | GB/s |",
  "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
  ($all | to_entries[] | .key as $name | select(.value | type == "array") | .value[] | select(.phase != null and .tokens_per_s != null)
   | "| \($name) | \(.phase) | \(.batch) | \(.tokens) | \(.context) | \(.tokens_per_s | round_to(1)) | \(.ms | round_to(2)) | \(.spread | percent) | \(.gflops / 1000 | round_to(1)) | \(.gbytes_per_s | round_to(0)) |")
