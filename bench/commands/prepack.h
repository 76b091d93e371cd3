// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forepack bench prepack`: prepack.c has the options and runs the policies, prepack_runs.c
// finds runs, prepack_report.c turns the runs into rows, the table and the page. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "bench/commands/bench.h"
#include "bench/prepack.h"
#include "bench/report.h"

struct prepack_flags {
    char *model, *shape, *load, *backend, *dtype, *prompts, *lengths, *batch_size, *policies, *report;
    int64_t limit, threads, token_budget, rounds, memory_mib;
    bool json;
};

struct prepack_bench {
    const struct prepack_flags *flags;
    struct prompts prompts;      // prompts as read
    struct prompts full_prompts; // prompts cut for full bins
    struct model_config config;
    struct count_list batches;
    bool wanted[PREPACK_POLICIES];
    // [n_runs] each policy at each batch size. Dataset, none and full bins run once, as they use no batches.
    struct prepack_run *runs;
    int n_runs;
    struct prepack_need need; // the maximum over all runs
    struct prepack_memory memory;
    bool exact; // the backend computes a row independently of its batch
    struct report *report;
    json_t *rows;
};

// Returns true if the policy's passes depend on the batch size.
bool prepack_uses_batches(enum prepack_policy policy);
// Returns the run of a policy at a batch size, or NULL.
struct prepack_run *prepack_find_run(const struct prepack_bench *b, enum prepack_policy policy, int batch_size);
struct prepack_need prepack_run_need(const struct prepack_bench *b, const struct prepack_run *run);

// ---- report

void prepack_add_rows(struct prepack_bench *b);
void prepack_print_table(const struct prepack_bench *b);
void prepack_write_report(struct prepack_bench *b);
