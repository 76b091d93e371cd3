// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forepack bench prefill-quality`: quality.c has the options and the command,
// quality_documents.c makes documents, quality_ranks.c and quality_selection.c choose kept tokens, quality_tasks.c
// counts right answers, quality_ttft.c times the first token. One thread.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "bench/commands/bench.h"
#include "bench/report.h"
#include "bench/ruler.h"
#include "bench/tasks.h"
#include "cli/engine/model_pair.h"
#include "cli/progress.h"
#include "engine/engine.h"
#include "lib/text/tokenizer.h"
#include "speculator/calibration.h"
#include "speculator/select.h"
#include "speculator/sentences.h"

struct quality_flags {
    char *task, *form, *main, *spec, *shape, *spec_shape, *backend, *dtype, *prompt_tokens, *batches, *policies,
        *keep_rates, *qualities, *look_aheads, *chunk_tokens, *passages, *positions, *report;
    int64_t threads, token_budget, max_seqs, documents, first, seed, pool_window, tail_tokens, rounds, max_batch_tokens;
    bool paper_exact, time, json;
};

// The way in which tokens are ranked. Selection and budget are the same for each.
enum quality_policy {
    QUALITY_IMPORTANCE, // the speculator's scores
    QUALITY_ORACLE,     // the main model's scores over its whole answer: the result of a perfect speculator
    QUALITY_BM25,       // chunks by the words of the question
    QUALITY_PERPLEXITY, // the tokens that the small model predicts worst
    QUALITY_RANDOM,
    QUALITY_POSITIONAL, // the first and the last tokens
    QUALITY_FIRST,
    QUALITY_LAST,
    QUALITY_POLICIES,
};

struct quality {
    const struct quality_flags *flags;
    struct count_list lengths, batches, look_aheads, chunks;
    double keep_rates[NUMBER_LIST_MAX];
    int n_keep_rates;
    double qualities[NUMBER_LIST_MAX]; // targets of the quality contract
    int n_qualities;
    struct calibration *calibration; // calibration of the speculator; NULL: none
    bool policy[QUALITY_POLICIES];
    struct model_pair *pair;
    struct tokenizer *tokenizer;     // NULL for the task ttft
    struct ruler_passages *passages; // passages of RULER's questions; NULL: written passages
    struct sentence_table sentences; // of the tokenizer, for QUALITY_BM25
    struct comm *comm;               // of `surprise`
    struct engine *surprise;         // the small model for QUALITY_PERPLEXITY; NULL until it is needed
    struct progress progress;
    json_t *rows;
};

// A class of documents: a class of tasks.h, or TASKS + a task of ruler.h.
enum { QUALITY_CLASSES = TASKS + RULER_TASKS };

struct quality_document {
    int class;
    int32_t *ids; // [n] tokens of the prompt
    int n;
    int max_tokens; // limit of the answer
    struct task_document task;
    struct ruler_document ruler;
};

const char *quality_class_name(int class);
bool quality_class_is_ruler(int class);
bool quality_class_runs(const struct quality *q, int class); // true if --task includes the class

// Makes a document of at most `tokens` tokens. Call quality_document_free() after a failure, too.
enum status quality_document_make(const struct quality *q, int class, int tokens, int64_t number,
                                  struct quality_document *d);
void quality_document_free(struct quality_document *d);
// Returns the score of an answer, 0 to 1. Only RULER's tasks have scores between.
enum status quality_document_score(const struct quality *q, const struct quality_document *d, const int32_t *answer,
                                   int n, bool stopped, double *score_p);

const char *quality_policy_name(enum quality_policy policy);

// Returns the tail window of a prompt of n tokens.
int quality_tail_tokens(const struct quality *q, int n);
// Returns the options of a scoring.
struct prefill quality_prefill(const struct quality *q, int look_ahead, int chunk_tokens);
// Returns the keep rate that the quality contract chooses for a scored prompt.
double quality_choose_rate(const struct quality *q, const struct model_pair_prompt *prompt,
                           const struct prefill *prefill, double quality);
// Selects the kept tokens of a scored prompt. Returns the number of ranges; the caller frees *kept_p.
int quality_select(const struct quality *q, const struct model_pair_prompt *prompt, int chunk_tokens, double keep_rate,
                   struct token_range **kept_p);
int quality_kept_tokens(const struct token_range *kept, int n_kept);

// Ranks the tokens of a prompt by a policy without a score: importance and score_us are set. `number` is that of the
// document.
enum status quality_rank(struct quality *q, enum quality_policy policy, int chunk_tokens, int64_t number,
                         struct model_pair_prompt *p);
enum status quality_rank_bm25(const struct quality *q, struct model_pair_prompt *p, int chunk_tokens);
void quality_ranks_close(struct quality *q);

// Run the two measurements. Each adds rows and prints its table; the report functions write the page.
enum status quality_run_tasks(struct quality *q);
enum status quality_run_ttft(struct quality *q);
void quality_report_tasks(struct report *report, const struct quality *q);
void quality_report_ttft(struct report *report, const struct quality *q);
