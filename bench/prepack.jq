# SPDX-License-Identifier: Apache-2.0
# Makes the page of bench/prepack.sh from all its rows, each with "model" and "set": our figures, the goals, and the paper's
# figures (arXiv 2404.09529, table 2).

def round_to($digits): pow(10; $digits) as $p | (. * $p | round) / $p;
def shown($digits): if . == null then "-" else round_to($digits) | tostring end;
def ms: if . == null then "-" elif . >= 100 then round else round_to(1) end;
# A policy's cell in the table of times. A single batch has no deviation.
def times: if . == null then "-" else "\(.prefill_ms_mean | ms)\(if .prefill_ms_std then " ± \(.prefill_ms_std | ms)" else "" end), \(.ttft_ms_mean | ms)" end;
def reached($ok): if $ok then "yes" else "no" end;
# The paper's time of padded over prepacked, at batch sizes 4, 8, 16, 32, 64.
def paper: {wiki256: [1.39, 1.70, 1.94, 2.07, 2.16], wiki512: [1.48, 1.91, 2.45, 2.98, 3.50],
            mmlu: [1.47, 2.30, 3.33, 4.69, 6.22], alpaca: [1.21, 1.47, 1.87, 2.32, 2.85],
            samsum: [1.34, 1.72, 2.24, 2.76], hh: [1.41, 1.81, 2.37, 2.87]};
def paper_at($set; $size): (paper[$set] // [])[{"4": 0, "8": 1, "16": 2, "32": 3, "64": 4}[$size | tostring] // 9];

group_by([.model, .set, .batch_size]) | sort_by([.[0].model, .[0].set, .[0].batch_size])
| map(INDEX(.policy) + {model: .[0].model, set: .[0].set, size: .[0].batch_size, prompts: .[0].prompts, tokens: .[0].tokens})
| . as $groups
| "## Speed-up of batch over padded",
  "",
  "`goal`: padded rows over tokens of the same batches, less 3 %.",
  "",
  "| model | set | batch | padded / batch | goal | reached | paper | padded / dataset | padded / length-ordered |",
  "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
  ($groups[] | (.padded.rows / .tokens * 0.97) as $least
    | "| \(.model) | \(.set) | \(.size) | \(.batch.padded_time_ratio | shown(2)) | \($least | shown(2)) | \(reached(.batch.padded_time_ratio >= $least)) | \(paper_at(.set; .size) // "-") | \(.dataset.padded_time_ratio | shown(2)) | \(."length-ordered".padded_time_ratio | shown(2)) |"),
  "",
  ($groups | group_by(.model)[]
    | "## Prefill and time to first token, \(.[0].model)",
      "",
      "Prefill of a batch in ms, mean ± deviation over batches; after the comma the mean TTFT in ms, from the start of the prompt's batch or, under `dataset`, bin.",
      "",
      "| set | batch | padded | length-ordered | batch | dataset |",
      "| --- | ---: | ---: | ---: | ---: | ---: |",
      (.[] | "| \(.set) | \(.size) | \(.padded | times) | \(."length-ordered" | times) | \(.batch | times) | \(.dataset | times) |"),
      ""),
  "## The whole queue",
  "",
  "Goals of `dataset`: its time per token is at most 1.03 x that of completely full bins, which run separately, and it is not slower than length-ordered.",
  "",
  "| model | set | batch | us per token | us per token, full bins | ratio | reached | over length-ordered | reached | over none |",
  "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | --- | ---: |",
  ($groups[] | "| \(.model) | \(.set) | \(.size) | \(.dataset.us_per_token | shown(1)) | \(.dataset.full_bin_us_per_token | shown(1)) | \(.dataset.over_full_bin | shown(3)) | \(if .dataset.over_full_bin == null then "-" else reached(.dataset.over_full_bin <= 1.03) end) | \(.dataset.over_length_ordered | shown(3)) | \(reached(.dataset.over_length_ordered <= 1)) | \(if .none then .dataset.us_per_token / .none.us_per_token | shown(3) else "-" end) |"),
  "",
  "## Memory of KV and activations, computed",
  "",
  "`longest / mean`: longest over mean length of a batch, mean over batches. The goal of padded over batch is 0.9 x this ratio, at equal batch sizes and for the largest batch in \(($groups[0].padded.memory_mib) // "-") MiB (there the longest over the mean of all prompts in that batch).",
  "",
  "| model | set | batch | padded MB | batch MB | padded / batch | longest / mean | reached | largest batch, padded | largest batch, batch | ratio |",
  "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
  ($groups[] | "| \(.model) | \(.set) | \(.size) | \(.padded.peak_mb | shown(1)) | \(.batch.peak_mb | shown(1)) | \(.batch.padded_memory_ratio | shown(2)) | \(.batch.longest_over_mean | shown(2)) | \(reached(.batch.padded_memory_ratio >= 0.9 * .batch.longest_over_mean)) | \(.padded.largest_batch) | \(.batch.largest_batch) | \(.batch.largest_batch / .padded.largest_batch | shown(2)) |"),
  "",
  "## All rows",
  "",
  "| model | set | batch | policy | prefill ms | std | TTFT ms | TTFT ms, queued | us per token | rows | padding | passes | KV MB | activations MB |",
  "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
  ($groups[] | . as $g | (.padded, ."length-ordered", .batch, .dataset, .none) | select(. != null)
    | "| \($g.model) | \($g.set) | \($g.size) | \(.policy) | \(.prefill_ms_mean | shown(2)) | \(.prefill_ms_std | shown(2)) | \(.ttft_ms_mean | shown(2)) | \(.ttft_ms_mean_queued | shown(1)) | \(.us_per_token | shown(1)) | \(.rows) | \(.pad_fraction * 100 | shown(1)) % | \(.passes) | \(.peak_kv_mb | shown(1)) | \(.peak_activation_mb | shown(1)) |")
