# SPDX-License-Identifier: Apache-2.0
# Makes the page of bench/engine.sh from its JSON files: {"1b-bf16": [rows], ...}. First the goals, then every row. Goals that
# are stated for a machine of 44 GB/s and 1054 GFLOP/s (bf16) are scaled by the row's machine probe: by the time for its bytes
# plus the time for its arithmetic, since neither alone limits a pass of 8 rows.

. as $all
| def row($file; $phase; $batch; $tokens):
    first(($all[$file] // [])[], ($all[$file + "-packed"] // [])[] | select(.phase == $phase and .batch == $batch and ($tokens == null or .tokens == $tokens)))
        // null;
  def round_to($digits): pow(10; $digits) as $p | (. * $p | round) / $p;
  def percent: . * 100 | round_to(1) | "\(.) %";
  # One line of the first table. With `at_least` the goal is a lower bound, else an upper bound.
  def goal($what; $goal; $value; $at_least; $shown; $measured):
    "| \($what) | \($shown) | " + (if $value == null then "not measured | | |" else
        "\($measured) | " + ($value / $goal | percent) + " | " +
        (if ($at_least and $value >= $goal) or (($at_least | not) and $value <= $goal) then "yes" else "no" end) + " |"
    end);
  def share($what; $goal; $row):
    goal($what; $goal; $row.share; true; "at least \($goal | percent) of the limit";
         "\($row.share // 0 | percent), \($row.tokens_per_s // 0 | round_to(1)) tokens/s, probe \($row.peak_gflops // 0 | round) GFLOP/s and \($row.dram_gbytes_per_s // 0 | round_to(1)) GB/s");
  def rate($what; $tokens_per_s; $row; $scale):
    (if $row == null or $scale == null then null else $tokens_per_s * $scale end) as $goal
    | goal($what; $goal // 1; (if $goal == null then null else $row.tokens_per_s end); true;
           "at least \($tokens_per_s) tokens/s, scaled \($goal // 0 | round_to(1))"; "\($row.tokens_per_s // 0 | round_to(1)) tokens/s");
  # The time for the row's bytes plus the time for its arithmetic on a machine with these rates.
  def both($gflops; $gbytes_per_s): .gbytes / $gbytes_per_s + (.linear_gflop + .attention_gflop) / $gflops;
  def scale($peak): if . == null or .peak_gflops == null then null
    else both($peak; 44) / both(.peak_gflops; .dram_gbytes_per_s) end;
  # The time taken, over the time of the linear part at the rate of 512 tokens plus attention at 60 % of the peak.
  def long($row):
    row("1b-bf16"; "prefill"; 1; 512) as $short
    | (if $row == null or $short == null or $row.peak_gflops == null then null else
        $row.ms / 1000 / ($row.linear_gflop / ($short.share * $row.peak_gflops) + $row.attention_gflop / (0.6 * $row.peak_gflops))
      end) as $value
    | goal("one prompt of \($row.tokens // "-"), bf16, 1B"; 1.15; $value; false;
           "at most 1.15 x (linear part as at 512 tokens + attention at 60 % of peak)"; "\($value // 0 | round_to(3))");
  # Two ranks over the mean of the two measurements of one rank. Each is a share of the limit by its own probe: of arithmetic
  # for prefill, of bytes and arithmetic for decode.
  def ranks($what; $phase; $batch; $goal):
    def reached: if $phase == "prefill" then .share else both(.peak_gflops; .dram_gbytes_per_s) * 1000 / .ms end;
    (["1b-one", "1b-one-again"] | map(row(.; $phase; $batch; null) | values | reached)) as $one
    | row("1b-two"; $phase; $batch; null) as $two
    | (if ($one | length) == 0 or $two == null then null else ($two | reached) / ($one | add / length) end) as $value
    | goal($what; $goal; $value; true; "at least \($goal | percent)"; "\($value // 0 | percent)");
  def products($file; $what):
    [($all[$file] // [])[] | select(.m >= 256) | .share] as $shares
    | goal($what; 0.9; ($shares | min); true; "at least 90 % of peak"; $shares | map(percent) | join(", "));

  "| | goal | measured | measured / goal | reached |",
  "| --- | --- | --- | --- | --- |",
  share("prefill bf16, 1B, 512 tokens"; 0.75; row("1b-bf16"; "prefill"; 1; 512)),
  share("prefill int8, 1B, 512 tokens"; 0.68; row("1b-int8"; "prefill"; 1; 512)),
  share("prefill bf16, 1B, 32 x 128 packed"; 0.74; row("1b-bf16"; "prefill"; 32; 128)),
  share("prefill bf16, 110M, 512 tokens"; 0.68; row("110m-bf16"; "prefill"; 1; 512)),
  (($all["1b-long"] // [])[] | long(.)),
  share("decode bf16, 1B, one sequence"; 0.92; row("1b-bf16"; "decode"; 1; null)),
  share("decode int8, 1B, one sequence"; 0.90; row("1b-int8"; "decode"; 1; null)),
  (row("1b-bf16"; "decode"; 8; null) as $r | rate("decode bf16, 1B, 8 sequences"; 110; $r; $r | scale(1054))),
  (row("1b-bf16"; "decode"; 32; null) as $r | rate("decode bf16, 1B, 32 sequences"; 220; $r; $r | scale(1054))),
  (row("1b-int8"; "decode"; 32; null) as $r | rate("decode int8, 1B, 32 sequences"; 400; $r; $r | scale(2106))),
  (row("110m-bf16"; "decode"; 32; null) as $r | rate("decode bf16, 110M, 32 sequences"; 1800; $r; $r | scale(1054))),
  products("1b-bf16-kernels"; "gemms alone, bf16, 1B, M >= 256"),
  products("1b-int8-kernels"; "gemms alone, int8, 1B, M >= 256"),
  ranks("two ranks compared with one, prefill 512"; "prefill"; 1; 0.95),
  ranks("two ranks compared with one, decode of one sequence"; "decode"; 1; 0.90),
  ranks("two ranks compared with one, decode of 8"; "decode"; 8; 0.90),
  (first(($all["1b-score"] // [])[] | select(.phase == "score")) // null | . as $r
    | goal("scoring \($r.tokens // "-") tokens, look-ahead \($r.look_ahead // "-")"; 1.05; $r.over_plain; false;
           "at most 1.05 x prefill and 7 decode steps"; "\($r.over_plain // 0 | round_to(3))")),
  ($all["1b-start"][0].seconds // null | . as $s
    | goal("start to first token, 1B bf16, warm file cache"; 1.5; (if $s == null then null else $s[length / 2 | floor] end); false;
           "at most 1.5 s"; $s // [] | map("\(.) s") | join(", "))),
  "",
  ($all | to_entries[] | select(.value != [] and .value[0].phase != "start") |
    "## \(.key)", "",
    (if .value[0].phase == "matmul" then
        "| M | us | spread | GFLOP/s | peak | GB/s | DRAM | share | oneDNN GFLOP/s |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        (.value[] | "| \(.m) | \(.us | round_to(1)) | \(.spread | percent) | \(.gflops | round_to(1)) | \(.peak_gflops // 0 | round) | \(.gbytes_per_s | round_to(1)) | \(.dram_gbytes_per_s // 0 | round_to(1)) | \(.share // 0 | percent) \(.limit) | \(.onednn_gflops // "-" | if type == "number" then round_to(1) else . end) |")
    else
        "| phase | batch | tokens | context | tokens/s | spread | ms | GFLOP/s | peak | GB/s | DRAM | share | RSS MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        (.value[] | "| \(.phase) | \(.batch) | \(.tokens) | \(.context) | \(.tokens_per_s | round_to(1)) | \(.spread | percent) | \(.ms | round_to(2)) | \(.gflops | round_to(1)) | \(.peak_gflops // 0 | round) | \(.gbytes_per_s | round_to(1)) | \(.dram_gbytes_per_s // 0 | round_to(1)) | \(.share // 0 | percent) \(.limit) | \(.peak_rss_mb | round) |")
    end), "")
