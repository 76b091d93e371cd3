// SPDX-License-Identifier: Apache-2.0
// Counts right answers in classes of documents at each keep rate and ranking policy. Documents are
// computed in groups: a document is scored once for all keep rates, and the pruned prompts of a group are packed like
// requests of a cluster.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/quality.h"
#include "bench/quantiles.h"
#include "lib/base/mem.h"

enum { EVERYTHING = QUALITY_POLICIES, CONTRACT };          // additional policies of a line
enum { GROUP_TOKENS = 1 << 14, GROUP_DOCUMENTS_MAX = 64 }; // rough size of a group

// One line of a table. A table is for one class and one prompt length.
struct task_line {
    int policy, look_ahead, chunk_tokens;
    struct task_cell {
        double score;         // summed over the documents
        double rate, kept;    // keep rates and kept shares, summed over the documents
        double ttft_us;       // summed over the documents; 0 without --time
        int accepted;         // look-ahead tokens of the speculator that begin the answer, summed over the documents
    } cells[NUMBER_LIST_MAX]; // a cell for each keep rate or quality; one cell if everything is kept
};

struct task_table {
    int class;
    int tokens; // 0: all lengths
    int documents;
    struct task_line *lines;
    int n_lines;
};

static const char *line_policy(const struct task_line *line)
{
    return line->policy == EVERYTHING ? "everything"
           : line->policy == CONTRACT ? "quality"
                                      : quality_policy_name(line->policy);
}

static bool line_is_importance(const struct task_line *line)
{
    return line->policy == QUALITY_IMPORTANCE || line->policy == CONTRACT;
}

static int line_cells(const struct quality *q, const struct task_line *line)
{
    return line->policy == EVERYTHING ? 1 : line->policy == CONTRACT ? q->n_qualities : q->n_keep_rates;
}

static double line_rate(const struct quality *q, const struct task_line *line, int k,
                        const struct model_pair_prompt *prompt)
{
    if (line->policy == EVERYTHING) return 1;
    if (line->policy != CONTRACT) return q->keep_rates[k];
    const struct prefill prefill = quality_prefill(q, line->look_ahead, line->chunk_tokens);
    return quality_choose_rate(q, prompt, &prefill, q->qualities[k]);
}

// ---- a group of documents -------------------------------------------------------------------------------------------

struct group {
    struct quality *q;
    struct task_table *table;
    int first, n; // documents
    struct quality_document *documents;
    struct model_pair_prompt *prompts;   // ranked by the policy of the current line
    struct model_pair_request *requests; // [n_requests]
    struct purpose {
        int document;
        struct task_cell *cell;
        int64_t score_us;
        int32_t *contiguous;           // kept tokens with positions one after another; NULL: positions are restored
        int32_t draft[LOOK_AHEAD_MAX]; // [n_draft] the speculator's look-ahead
        int n_draft;
    } * purposes; // [n_requests]
    int n_requests, capacity;
};

static enum status group_make_documents(struct group *g)
{
    for (int i = 0; i < g->n; i++) {
        TRY(quality_document_make(g->q, g->table->class, g->table->tokens, g->first + i, &g->documents[i]));
        g->prompts[i] = (struct model_pair_prompt){
            .tokens = g->documents[i].ids,
            .n = g->documents[i].n,
            .tail_tokens = quality_tail_tokens(g->q, g->documents[i].n),
            .importance = mem_alloc_array((size_t)g->documents[i].n, sizeof(float)),
            .look_ahead = mem_alloc_array(LOOK_AHEAD_MAX, sizeof(int32_t)),
        };
    }
    return STATUS_OK;
}

// Scores the group's prompts. The oracle's look-ahead is the whole answer, so it ends with EOS.
static enum status group_score(struct group *g, const struct task_line *line)
{
    const bool by_main = line->policy == QUALITY_ORACLE;
    if (!line_is_importance(line) && !by_main) {
        for (int i = 0; i < g->n; i++)
            TRY(quality_rank(g->q, line->policy, line->chunk_tokens, g->first + i, &g->prompts[i]));
        return STATUS_OK;
    }
    const struct prefill prefill = quality_prefill(g->q, line->look_ahead, line->chunk_tokens);
    for (int i = 0; i < g->n && g->q->flags->time; i++)
        TRY(model_pair_score(g->q->pair, by_main, &prefill, &g->prompts[i], 1));
    if (g->q->flags->time) return STATUS_OK;
    return model_pair_score(g->q->pair, by_main, &prefill, g->prompts, g->n);
}

static int32_t *kept_tokens(const struct quality_document *d, const struct token_range *kept, int n_kept)
{
    int32_t *tokens = mem_alloc_array((size_t)d->n, sizeof *tokens);
    int n = 0;
    for (int k = 0; k < n_kept; k++)
        for (int t = kept[k].first; t <= kept[k].last; t++)
            tokens[n++] = d->ids[t];
    return tokens;
}

static void group_add_request(struct group *g, int i, const struct token_range *kept, int n_kept,
                              struct task_cell *cell)
{
    const int n = g->documents[i].n, max_tokens = g->documents[i].max_tokens;
    if (g->n_requests == g->capacity) {
        g->capacity = g->capacity ? 2 * g->capacity : 64;
        g->requests = mem_resize(g->requests, (size_t)g->capacity, sizeof *g->requests);
        g->purposes = mem_resize(g->purposes, (size_t)g->capacity, sizeof *g->purposes);
    }
    const bool contiguous = n_kept && strcmp(g->q->flags->positions, "contiguous") == 0;
    int32_t *tokens = contiguous ? kept_tokens(&g->documents[i], kept, n_kept) : NULL;
    const int n_contiguous = contiguous ? quality_kept_tokens(kept, n_kept) : 0;
    g->purposes[g->n_requests] = (struct purpose){
        .document = i, .cell = cell, .score_us = n_kept ? g->prompts[i].score_us : 0, .contiguous = tokens};
    g->requests[g->n_requests++] = (struct model_pair_request){
        .tokens = contiguous ? tokens : g->documents[i].ids,
        .n = contiguous ? n_contiguous : n,
        .kept = kept,
        .n_kept = contiguous ? 0 : n_kept,
        .max_tokens = max_tokens,
        .answer = mem_alloc_array((size_t)max_tokens, sizeof(int32_t)),
    };
    cell->kept += n_kept ? (double)quality_kept_tokens(kept, n_kept) / n : 1;
}

// Keeps the look-ahead of the last request's prompt.
static void group_keep_draft(struct group *g, const struct model_pair_prompt *prompt)
{
    struct purpose *purpose = &g->purposes[g->n_requests - 1];
    purpose->n_draft = prompt->n_look_ahead;
    memcpy(purpose->draft, prompt->look_ahead, (size_t)prompt->n_look_ahead * sizeof *purpose->draft);
}

static void group_add_line(struct group *g, struct task_line *line)
{
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < line_cells(g->q, line); k++) {
            struct token_range *kept = NULL;
            const double rate = line_rate(g->q, line, k, &g->prompts[i]);
            int n_kept = rate == 1 ? 0 : quality_select(g->q, &g->prompts[i], line->chunk_tokens, rate, &kept);
            line->cells[k].rate += rate;
            group_add_request(g, i, kept, n_kept, &line->cells[k]);
            if (line_is_importance(line)) group_keep_draft(g, &g->prompts[i]);
        }
}

static enum status group_add_score(const struct group *g, int i, const int32_t *answer, int n, bool stopped,
                                   struct task_cell *cell)
{
    double score;
    TRY(quality_document_score(g->q, &g->documents[i], answer, n, stopped, &score));
    cell->score += score;
    return STATUS_OK;
}

// Returns true if the oracle's look-aheads are whole answers to the whole prompts, so these are not computed again.
static bool oracle_counts_whole(const struct group *g)
{
    return g->q->policy[QUALITY_ORACLE] && !quality_class_is_ruler(g->table->class) && !g->q->flags->time;
}

static enum status group_count_whole(struct group *g, struct task_cell *cell)
{
    for (int i = 0; i < g->n; i++) {
        const struct model_pair_prompt *p = &g->prompts[i];
        TRY(group_add_score(g, i, p->look_ahead, p->n_look_ahead, p->evidence.ended > 0, cell));
    }
    cell->rate += g->n;
    cell->kept += g->n;
    return STATUS_OK;
}

// Adds the group's answers to all lines. Adjacent lines with the same policy and look-ahead share the scores.
static enum status group_add_lines(struct group *g)
{
    for (int l = 0; l < g->table->n_lines; l++) {
        struct task_line *line = &g->table->lines[l];
        bool scored = l && line_is_importance(line) == line_is_importance(&line[-1]) &&
                      (line_is_importance(line) || line->policy == line[-1].policy) &&
                      line[-1].look_ahead == line->look_ahead && line->policy != QUALITY_BM25;
        if (line->policy == EVERYTHING && oracle_counts_whole(g)) continue;
        if (line->policy != EVERYTHING && !scored) TRY(group_score(g, line));
        if (line->policy == QUALITY_ORACLE && !scored && oracle_counts_whole(g))
            TRY(group_count_whole(g, g->table->lines[0].cells));
        group_add_line(g, line);
    }
    return STATUS_OK;
}

static int accepted_tokens(const struct purpose *purpose, const struct model_pair_request *request)
{
    int n = 0;
    while (n < purpose->n_draft && n < request->n_answer && purpose->draft[n] == request->answer[n])
        n++;
    return n;
}

static enum status group_count(struct group *g)
{
    g->table->documents += g->n;
    for (int r = 0; r < g->n_requests; r++) {
        const struct purpose *purpose = &g->purposes[r];
        const struct model_pair_request *request = &g->requests[r];
        TRY(group_add_score(g, purpose->document, request->answer, request->n_answer, request->stopped, purpose->cell));
        purpose->cell->accepted += accepted_tokens(purpose, request);
        if (g->q->flags->time) purpose->cell->ttft_us += (double)(purpose->score_us + request->prefill_us);
    }
    return STATUS_OK;
}

// With --time, each request is alone, so that no other request delays its first token.
static enum status group_generate(struct group *g)
{
    const int together = g->q->flags->time ? 1 : g->n_requests;
    for (int r = 0; r < g->n_requests; r += together)
        TRY(model_pair_generate(g->q->pair, &g->requests[r], together));
    return STATUS_OK;
}

static enum status group_run(struct quality *q, struct task_table *table, int first, int n)
{
    struct group g = {.q = q, .table = table, .first = first, .n = n};
    g.documents = mem_alloc_array((size_t)n, sizeof *g.documents);
    g.prompts = mem_alloc_array((size_t)n, sizeof *g.prompts);
    enum status status = group_make_documents(&g);
    if (status == STATUS_OK) status = group_add_lines(&g);
    if (status == STATUS_OK) status = group_generate(&g);
    if (status == STATUS_OK) status = group_count(&g);
    for (int r = 0; r < g.n_requests; r++) {
        free((void *)g.requests[r].kept);
        free(g.purposes[r].contiguous);
        free(g.requests[r].answer);
    }
    for (int i = 0; i < n; i++) {
        free(g.prompts[i].importance);
        free(g.prompts[i].look_ahead);
        quality_document_free(&g.documents[i]);
    }
    free(g.requests);
    free(g.purposes);
    free(g.prompts);
    free(g.documents);
    return status;
}

// ---- tables ---------------------------------------------------------------------------------------------------------

static void table_add_line(struct task_table *t, int policy, int look_ahead, int chunk_tokens)
{
    t->lines[t->n_lines++] =
        (struct task_line){.policy = policy, .look_ahead = look_ahead, .chunk_tokens = chunk_tokens};
}

static void table_add_policy(struct task_table *t, const struct quality *q, int policy, int look_ahead)
{
    const bool by_model = policy < QUALITY_RANDOM || policy == CONTRACT;
    for (int c = 0; c < (by_model ? q->chunks.n : 1); c++)
        table_add_line(t, policy, look_ahead, q->chunks.count[c]);
}

static struct task_table table_create(const struct quality *q, int class, int tokens)
{
    struct task_table t = {.class = class, .tokens = tokens};
    t.lines = mem_alloc_array((size_t)(5 + (2 * q->look_aheads.n + 3) * q->chunks.n), sizeof *t.lines);
    table_add_line(&t, EVERYTHING, 0, 0);
    for (int a = 0; a < q->look_aheads.n; a++) {
        if (q->policy[QUALITY_IMPORTANCE]) table_add_policy(&t, q, QUALITY_IMPORTANCE, q->look_aheads.count[a]);
        if (q->n_qualities) table_add_policy(&t, q, CONTRACT, q->look_aheads.count[a]);
    }
    if (q->policy[QUALITY_ORACLE]) table_add_policy(&t, q, QUALITY_ORACLE, TASK_ANSWER_TOKENS);
    for (enum quality_policy p = QUALITY_BM25; p <= QUALITY_LAST; p++)
        if (q->policy[p]) table_add_policy(&t, q, p, 0);
    return t;
}

static void table_add(struct task_table *sum, const struct task_table *t)
{
    sum->documents += t->documents;
    for (int l = 0; l < t->n_lines; l++)
        for (int k = 0; k < NUMBER_LIST_MAX; k++) {
            sum->lines[l].cells[k].score += t->lines[l].cells[k].score;
            sum->lines[l].cells[k].rate += t->lines[l].cells[k].rate;
            sum->lines[l].cells[k].kept += t->lines[l].cells[k].kept;
            sum->lines[l].cells[k].ttft_us += t->lines[l].cells[k].ttft_us;
            sum->lines[l].cells[k].accepted += t->lines[l].cells[k].accepted;
        }
}

static char *line_name(const struct task_line *line)
{
    if (line->policy == EVERYTHING) return mem_string(line_policy(line));
    char *steps = line_is_importance(line) ? mem_format(", look-ahead %d", line->look_ahead) : mem_string("");
    char *chunks = line->chunk_tokens == CHUNK_TOKENS_AUTO ? mem_string("spans")
                   : line->chunk_tokens                    ? mem_format("chunks of %d", line->chunk_tokens)
                                                           : mem_string("single tokens");
    char *name = mem_format("%s%s, %s", line_policy(line), steps, chunks);
    free(steps);
    free(chunks);
    return name;
}

static json_t *cell_row(const struct quality *q, const struct task_table *t, const struct task_line *line, int k)
{
    const struct task_cell *cell = &line->cells[k];
    const double n = t->documents;
    char *name = line_name(line);
    json_t *row =
        json_pack("{s:s,s:s,s:o,s:s,s:s,s:o,s:o,s:b,s:o,s:f,s:f,s:f,s:o,s:o,s:s,s:i}", "task",
                  quality_class_name(t->class), "form", q->flags->form, "tokens",
                  t->tokens ? json_integer(t->tokens) : json_null(), "policy", line_policy(line), "name", name,
                  "look_ahead", line_is_importance(line) ? json_integer(line->look_ahead) : json_null(), "chunk_tokens",
                  line->policy == EVERYTHING                ? json_null()
                  : line->chunk_tokens == CHUNK_TOKENS_AUTO ? json_string("auto")
                                                            : json_integer(line->chunk_tokens),
                  "paper_exact", q->flags->paper_exact, "quality",
                  line->policy == CONTRACT ? json_real(q->qualities[k]) : json_null(), "keep_rate", cell->rate / n,
                  "kept_ratio", cell->kept / n, "score", cell->score / n, "draft_accepted",
                  line_is_importance(line) ? json_real(cell->accepted / n) : json_null(), "ttft_ms",
                  // The oracle answers the whole prompt first, so it has no TTFT.
                  q->flags->time && line->policy != QUALITY_ORACLE ? json_real(cell->ttft_us / n / 1000) : json_null(),
                  "positions", q->flags->positions, "documents", t->documents);
    free(name);
    return row;
}

static void line_print(const struct quality *q, const struct task_table *t, const struct task_line *line)
{
    const double n = t->documents;
    char *name = line_name(line);
    printf("%-42s", name);
    for (int k = 0; k < line_cells(q, line); k++) {
        const struct task_cell *cell = &line->cells[k];
        printf(" | %5.1f %5.1f", 100 * cell->score / n, 100 * cell->kept / n);
        if (line->policy == CONTRACT) printf(", for %g at mean rate %.2f", q->qualities[k], cell->rate / n);
    }
    printf("\n");
    free(name);
    if (q->flags->time && line->policy != QUALITY_ORACLE) {
        printf("%-42s", "  TTFT in ms");
        for (int k = 0; k < line_cells(q, line); k++)
            printf(" | %11.1f", line->cells[k].ttft_us / n / 1000);
        printf("\n");
    }
    if (!line_is_importance(line)) return;
    printf("%-42s", "  look-ahead tokens that begin the answer");
    for (int k = 0; k < line_cells(q, line); k++)
        printf(" | %11.2f", line->cells[k].accepted / n);
    printf("\n");
}

static void table_print(const struct quality *q, const struct task_table *t)
{
    char *tokens = t->tokens ? mem_format("%d tokens", t->tokens) : mem_string("all lengths");
    printf("\n%s, %s, %d documents: right answers and kept tokens in %%, by keep rate\n%-42s",
           quality_class_name(t->class), tokens, t->documents, "");
    free(tokens);
    for (int k = 0; k < q->n_keep_rates; k++)
        printf(" | %11g", q->keep_rates[k]);
    printf("\n");
    for (int l = 0; l < t->n_lines; l++)
        line_print(q, t, &t->lines[l]);
    fflush(stdout);
}

static void table_show(struct quality *q, const struct task_table *t)
{
    for (int l = 0; l < t->n_lines; l++)
        for (int k = 0; k < line_cells(q, &t->lines[l]); k++)
            json_array_append_new(q->rows, cell_row(q, t, &t->lines[l], k));
    if (!q->flags->json) table_print(q, t);
}

static enum status run_length(struct quality *q, struct task_table *table)
{
    const int documents = (int)q->flags->documents;
    int step = GROUP_TOKENS / table->tokens;
    step = step < 1 ? 1 : step > GROUP_DOCUMENTS_MAX ? GROUP_DOCUMENTS_MAX : step;
    for (int d = 0; d < documents; d += step) {
        const int n = documents - d < step ? documents - d : step;
        TRY(group_run(q, table, (int)q->flags->first + d, n));
        progress_draw(&q->progress, d + n, documents, d + n == documents, "%s, %d tokens: %d of %d documents",
                      quality_class_name(table->class), table->tokens, d + n, documents);
    }
    return STATUS_OK;
}

static enum status run_class(struct quality *q, int class)
{
    enum status status = STATUS_OK;
    struct task_table sum = table_create(q, class, 0);
    for (int i = 0; i < q->lengths.n && status == STATUS_OK; i++) {
        struct task_table table = table_create(q, class, q->lengths.count[i]);
        status = run_length(q, &table);
        if (status == STATUS_OK) {
            table_show(q, &table);
            table_add(&sum, &table);
        }
        free(table.lines);
    }
    if (status == STATUS_OK && q->lengths.n > 1) table_show(q, &sum);
    free(sum.lines);
    return status;
}

enum status quality_run_tasks(struct quality *q)
{
    for (int class = 0; class < QUALITY_CLASSES; class ++)
        if (quality_class_runs(q, class)) TRY(run_class(q, class));
    return STATUS_OK;
}
