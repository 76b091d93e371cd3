# SPDX-License-Identifier: Apache-2.0
# The table of bench/gpu.sh out of its JSON files: {"prefill": [rows], ...}. What is not there was not measured.

. as $all
| def round_to($digits): pow(10; $digits) as $p | (. * $p | round) / $p;
  def percent: if . == null then null else "\(. * 100 | round_to(1)) %" end;
  def row($file; $phase; $batch; $tokens):
    first(($all[$file] // [])[] | select(.phase == $phase and .batch == $batch and ($tokens == null or .tokens == $tokens))) // null;
  # Operations a second over the probe's.
  def compute_share: if . == null then null else (.gflops / .peak_gflops) end;
  # Attention alone: what a prompt of 16,384 tokens has of it beyond 16 prompts of 1,024, over the time it takes longer.
  def attention:
    row("prefill"; "prefill"; 1; 16384) as $long | row("packed"; "prefill"; 16; 1024) as $packed
    | if $long == null or $packed == null or $long.ms <= $packed.ms then null
      else ($long.attention_gflop - $packed.attention_gflop) / (($long.ms - $packed.ms) / 1000) / $long.peak_gflops end;
  def memory_share: if . == null then null else (.gbytes_per_s / .dram_gbytes_per_s) end;
  def line($what; $goal; $value; $shown; $ok):
    "| \($what) | \($goal) | \(if $value == null then "not measured" else $shown end) | \(if $value == null then "" elif $ok then "yes" else "no" end) |";
  def share($what; $goal; $value): line($what; "at least \($goal * 100) %"; $value; ($value | percent); $value != null and $value >= $goal);
  def most($value): if $value == null then null else ($value | round_to(3) | tostring) end;
  row("packed"; "prefill"; 8; 1024) as $p8 | row("packed"; "prefill"; 16; 1024) as $p16
| row("score"; "score"; 1; 32768) as $score
| (first(($all.prepack // [])[] | select(.policy == "batch")) // null) as $batch
| (first(($all.prefill // $all.packed // [])[]) // {}) as $any
| "matrix limit \(($any.peak_gflops // 0) / 1000 | round_to(1)) TFLOP/s in bf16, copy bandwidth \(($any.dram_gbytes_per_s // 0) | round_to(0)) GB/s, as measured here",
  "",
  "| what | to reach | measured | reached |",
  "| --- | --- | --- | --- |",
  share("prefill 8B, 8 x 1,024 tokens in a pass, of the matrix limit"; 0.65; ($p8 | compute_share)),
  share("prefill 8B, 16 x 1,024 tokens in a pass"; 0.65; ($p16 | compute_share)),
  share("prefill 8B, one prompt of 8,192"; 0.65; (row("prefill"; "prefill"; 1; 8192) | compute_share)),
  share("prefill 8B, one prompt of 16,384"; 0.65; (row("prefill"; "prefill"; 1; 16384) | compute_share)),
  share("attention alone at 16,384 tokens (by difference)"; 0.5; attention),
  share("decode 8B, batch 1, of copy bandwidth"; 0.8; (row("decode"; "decode"; 1; null) | memory_share)),
  share("decode 8B, batch 64, of copy bandwidth"; 0.7; (row("decode"; "decode"; 64; null) | memory_share)),
  line("padded over packed, batches of 64"; "at least 6"; $batch.padded_time_ratio; most($batch.padded_time_ratio);
       $batch != null and $batch.padded_time_ratio >= 6),
  line("scoring 32,768 tokens, look-ahead 8, over its plain passes"; "at most 1.05"; $score.over_plain; most($score.over_plain);
       $score != null and $score.over_plain <= 1.05),
  (($all.ttft // [])[] | select(.task == "ttft")
   | line("TTFT at keep rate \(.keep_rate), 8B for a 70B cut to 20 layers, speed-up over its bound"; "at least 0.95";
          .share; most(.share); .share >= 0.95)),
  "",
  "| run | phase | batch | tokens | context | tokens/s | ms | +- | TFLOP/s | GB/s |",
  "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
  ($all | to_entries[] | .key as $name | .value[] | select(.phase != null and .tokens_per_s != null)
   | "| \($name) | \(.phase) | \(.batch) | \(.tokens) | \(.context) | \(.tokens_per_s | round_to(1)) | \(.ms | round_to(2)) | \(.spread | percent) | \(.gflops / 1000 | round_to(1)) | \(.gbytes_per_s | round_to(0)) |")
