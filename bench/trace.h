// SPDX-License-Identifier: Apache-2.0
// Serving traces: when requests came, how long they were, and which of them began alike. CSV with a header; columns
// arrival_ms, prompt_tokens, output_tokens and, for prompts that share their beginnings, prefix_blocks: ids of the
// prompt's 512-token blocks, apart by blanks (Mooncake, FAST'25). Others are left alone.
#pragma once

#include <stdint.h>

#include "base/status.h"

enum { TRACE_BLOCK_TOKENS = 512 };

struct trace_row {
    double arrival_ms; // ascending
    int prompt_tokens, output_tokens;
    int first_block, n_blocks; // of trace.blocks; none: the prompt is like no other
};

struct trace {
    struct trace_row *rows;
    int n_rows, rows_capacity;
    int64_t *blocks;
    int n_blocks, blocks_capacity;
};

// STATUS_NOT_FOUND or STATUS_INVALID with a sentence that names the line.
enum status trace_read(const char *path, struct trace *trace);
void trace_free(struct trace *t);

// The tokens of a row's prompt at `scale` times its length: the first *n_p of these, at least 1 and at most `most`.
// Blocks shrink alike, and equal ids give equal tokens, so prompts that shared a beginning still do. Writes
// `tokens` [most].
void trace_prompt(const struct trace *t, int row, double scale, uint64_t seed, int vocab_size, int most,
                  int32_t *tokens, int *n_p);
