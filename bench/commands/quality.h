// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forepack bench prefill-quality`: quality.c has the options and the command, quality_needle.c
// counts right answers, quality_ttft.c times the first token. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "bench/commands/bench.h"
#include "bench/commands/model_pair.h"
#include "bench/report.h"
#include "cli/progress.h"
#include "model/tokenizer.h"
#include "speculator/select.h"
#include "speculator/sentences.h"

enum { QUALITY_ANSWER_TOKENS = 8 };

struct quality_flags {
    char *task, *main, *spec, *shape, *spec_shape, *backend, *dtype, *prompt_tokens, *keep_rates, *look_aheads,
        *chunk_tokens, *report;
    int64_t threads, token_budget, documents, seed, pool_window, tail_tokens, rounds;
    bool paper_exact, json;
};

struct quality {
    const struct quality_flags *flags;
    struct bench_counts lengths, look_aheads, chunks;
    double keep_rates[BENCH_COUNTS_MAX];
    int n_keep_rates;
    struct model_pair *pair;
    struct tokenizer *tokenizer; // needle only
    struct sentence_table sentences;
    int32_t *tokens; // [n] the current prompt
    int n;
    float *importance; // [longest prompt] of the current prompt
    struct progress progress;
    json_t *rows;
};

// The tail window of a prompt of n tokens.
int quality_tail_tokens(const struct quality *q, int n);
// Scores the current prompt into q->importance.
enum status quality_score(struct quality *q, int look_ahead, int64_t *score_us_p);
// Selects the kept tokens of the current prompt by q->importance. Returns the number of ranges; the caller frees
// *kept_p.
int quality_select(const struct quality *q, int chunk_tokens, double keep_rate, bool keep_first,
                   struct token_range **kept_p);
int quality_kept_tokens(const struct token_range *kept, int n_kept);

// The two tasks: each adds rows and prints its table; the report functions write the page.
enum status quality_run_needle(struct quality *q);
enum status quality_run_ttft(struct quality *q);
void quality_report_needle(struct report *report, const struct quality *q);
void quality_report_ttft(struct report *report, const struct quality *q);
