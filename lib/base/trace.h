// SPDX-License-Identifier: Apache-2.0
// Serving traces: arrival times, prompt and output lengths, and shared prefixes. CSV with a header and the columns
// arrival_ms, prompt_tokens and output_tokens. The optional column prefix_blocks holds the ids of the prompt's
// 512-token blocks, separated by blanks (Mooncake, FAST'25). Other columns are ignored.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"

enum { TRACE_BLOCK_TOKENS = 512 };

struct trace_row {
    double arrival_ms; // ascending
    int prompt_tokens, output_tokens;
    int first_block, n_blocks; // ids in trace.blocks; none: the prompt shares no prefix
};

struct trace {
    struct trace_row *rows;
    int n_rows, rows_capacity;
    int64_t *blocks;
    int n_blocks, blocks_capacity;
};

// Reads a file. Returns STATUS_NOT_FOUND, or STATUS_INVALID with an error message that names the line.
enum status trace_read(const char *path, struct trace *trace);
void trace_free(struct trace *t);

// Writes the tokens of a row's prompt, at `scale` times its length, to `tokens` [max_tokens]. *n_p becomes their
// number, at least 1 and at most max_tokens. Blocks shrink by the same factor and equal ids give equal tokens, so
// shared prefixes stay shared.
void trace_prompt(const struct trace *t, int row, double scale, uint64_t seed, int vocab_size, int max_tokens,
                  int32_t *tokens, int *n_p);
