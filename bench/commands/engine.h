// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forepack bench engine`: engine.c has the options and opens the model, engine_phases.c runs
// prefill, decode and scoring, engine_drafts.c runs decoding with drafts, engine_report.c prints the rows. One thread,
// on the leader's rank.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "bench/commands/bench.h"
#include "bench/passes.h"

struct engine_flags {
    char *model, *shape, *load, *backend, *dtype, *kv_dtype, *allreduce_dtype, *prompt_tokens, *batch;
    char *stage_layers;
    int64_t tp, pp, threads, decode_tokens, context, token_budget, rounds, probe_ms, min_ms, draft_tokens, more_tokens;
    double draft_acceptance;
    bool fp8_fast_accum, score, json;
};

struct engine_bench {
    const struct engine_flags *flags;
    struct count_list prompts, batches; // prompts.n is 0 without prefill
    const char *path;
    bool dummy;
    struct model_config config;
    struct passes_limits limits; // limits of the opened model

    int ranks, threads;           // threads of all ranks together
    pid_t *pids;                  // [ranks]
    const char *dtype, *kv_dtype; // in use, never "auto"
    double megabytes_at_open, open_seconds;
    struct probe *probe;
    struct engine *engine;
    struct passes *passes;
    json_t *rows;
};

// One row of the table.
struct engine_run {
    struct engine_bench *bench;
    const char *phase; // "prefill", "more", "decode", "score"
    int batch, tokens, context;
    struct work work; // work of one run, the same in every round
};

// The functions below say which measurements run, for the memory plan and for the run itself.
enum { ENGINE_LOOK_AHEAD = 8 };
// Returns true if a batch of prompts is measured. A single prompt always is, several prompts only if one pass holds
// all.
bool engine_prefills(const struct engine_bench *b, int batch, int tokens);
// Returns the KV entries of a prompt and its look-ahead. The look-ahead is shorter if the model's context ends, as on a
// speculator.
int64_t engine_score_entries(const struct engine_bench *b, int tokens);

// Runs every measurement and adds its row.
enum status engine_measure_all(struct engine_bench *b);

// Decodes with drafts of --draft-tokens. See engine_drafts.c.
enum status engine_measure_drafts(struct engine_bench *b, int batch);

// Returns the settings of the rounds of a measurement, from the flags.
static inline struct rounds engine_rounds(const struct engine_bench *b)
{
    const struct engine_flags *f = b->flags;
    return (struct rounds){b->probe, bench_probe_type(b->dtype), (int)f->rounds, (int)f->min_ms};
}

// ---- report

double engine_peak_rss_mb(const struct engine_bench *b); // sum over all ranks
void engine_print_heading(const struct engine_bench *b);
// Prints one row and adds it to b->rows; returns it, borrowed.
json_t *engine_add_row(struct engine_bench *b, const struct engine_run *run, const struct measurement *m,
                       const struct rounds_readings *readings, const struct contender *c);
