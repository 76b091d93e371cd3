// SPDX-License-Identifier: Apache-2.0
// The needle task: right answers at each keep rate, with importance and with methods that rank tokens without a model.
// All methods use the same selection (speculator/select.h) with the same keep budget and the same tokens kept beyond
// it.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/commands/quality.h"
#include "bench/quantiles.h"
#include "bench/random.h"
#include "bench/tasks.h"

enum needle_method { EVERYTHING, IMPORTANCE, RANDOM, LAST, FIRST_AND_LAST };
static const char *const method_names[] = {"everything", "importance", "random", "last", "first+last"};

// A line of the table for one prompt length: a selection method and its answers by keep rate.
struct needle_line {
    enum needle_method method;
    int look_ahead, chunk_tokens;
    struct needle_cell {
        int right;
        double kept_share; // summed over documents
        struct samples score_ms, prefill_ms, ttft_ms;
    } cells[BENCH_COUNTS_MAX];
};

struct needle_table {
    struct needle_line *lines;
    int n;
};

// ---- one document ---------------------------------------------------------------------------------------------------

// Ranks the tokens without a model. The tail window gets the lowest rank: it is kept anyway, so none of the budget goes
// to it, and these methods keep at least as many tokens as importance does.
static void needle_rank(const struct quality *q, enum needle_method method, struct random_source *random)
{
    const int ranked = q->flags->paper_exact ? q->n : q->n - quality_tail_tokens(q, q->n);
    for (int i = 0; i < q->n; i++) {
        float rank = method == RANDOM ? (float)random_unit(random)
                     : method == LAST ? (float)i
                                      : (float)abs(2 * i - (ranked - 1));
        q->importance[i] = i < ranked ? rank : -1;
    }
}

static enum status needle_make_document(struct quality *q, int length, int number, struct task_document *document)
{
    const struct task_request request = {.task = TASK_NEEDLE,
                                         .tokens = length,
                                         .seed = (uint64_t)q->flags->seed,
                                         .number = (uint64_t)number,
                                         .questions = 1};
    enum status status = task_make(q->tokenizer, &request, document);
    q->tokens = document->ids;
    q->n = document->n;
    return status;
}

// Generates the answer from the kept ranges (n_kept 0: the whole prompt) and adds the result to the cell.
static enum status needle_ask(struct quality *q, const struct task_document *document, const struct token_range *kept,
                              int n_kept, int64_t score_us, struct needle_cell *cell)
{
    const struct task_question *asked = &document->questions[0];
    int32_t tokens[QUALITY_ANSWER_TOKENS];
    int n_tokens = n_kept ? quality_kept_tokens(kept, n_kept) : q->n;
    struct model_pair_answer answer = {.tokens = tokens};
    enum status status = model_pair_generate(q->pair, q->tokens, q->n, kept, n_kept, QUALITY_ANSWER_TOKENS, &answer);
    if (status != STATUS_OK) return status;
    cell->right += answer.stopped && answer.n == asked->n_answer - 1 &&
                   memcmp(tokens, asked->answer_ids, (size_t)answer.n * sizeof *tokens) == 0;
    cell->kept_share += (double)n_tokens / q->n;
    samples_add(&cell->score_ms, (double)score_us / 1000);
    samples_add(&cell->prefill_ms, (double)answer.prefill_us / 1000);
    samples_add(&cell->ttft_ms, (double)(score_us + answer.prefill_us) / 1000);
    return STATUS_OK;
}

// Lines with the same look-ahead are adjacent: the prompt is scored once for all of them, and the TTFT of each includes
// the whole scoring time.
static enum status needle_ask_all(struct quality *q, struct needle_table *table, const struct task_document *document,
                                  int number)
{
    struct random_source random = random_stream((uint64_t)q->flags->seed + 1, (uint64_t)number);
    enum status status = STATUS_OK;
    int64_t score_us = 0;
    for (int l = 0; l < table->n && status == STATUS_OK; l++) {
        struct needle_line *line = &table->lines[l];
        if (line->method == EVERYTHING) {
            status = needle_ask(q, document, NULL, 0, 0, &line->cells[0]);
            continue;
        }
        bool scored =
            l > 0 && table->lines[l - 1].method == IMPORTANCE && table->lines[l - 1].look_ahead == line->look_ahead;
        if (line->method != IMPORTANCE) {
            score_us = 0;
            needle_rank(q, line->method, &random);
        } else if (!scored) {
            status = quality_score(q, line->look_ahead, &score_us);
        }
        for (int k = 0; k < q->n_keep_rates && status == STATUS_OK; k++) {
            struct token_range *kept;
            bool keep_first = line->method != LAST && q->tokens[0] == model_pair_spec(q->pair)->bos_id;
            int n_kept = quality_select(q, line->chunk_tokens, q->keep_rates[k], keep_first, &kept);
            status = needle_ask(q, document, kept, n_kept, score_us, &line->cells[k]);
            free(kept);
        }
    }
    return status;
}

// ---- one prompt length ----------------------------------------------------------------------------------------------

static void table_add_line(struct needle_table *table, enum needle_method method, int look_ahead, int chunk_tokens)
{
    table->lines[table->n++] =
        (struct needle_line){.method = method, .look_ahead = look_ahead, .chunk_tokens = chunk_tokens};
}

static struct needle_table table_create(const struct quality *q)
{
    struct needle_table t = {.n = 0};
    t.lines = mem_alloc_array((size_t)(q->look_aheads.n * q->chunks.n + 4), sizeof *t.lines);
    table_add_line(&t, EVERYTHING, 0, 0);
    for (int a = 0; a < q->look_aheads.n; a++)
        for (int c = 0; c < q->chunks.n; c++)
            table_add_line(&t, IMPORTANCE, q->look_aheads.count[a], q->chunks.count[c]);
    for (enum needle_method method = RANDOM; method <= FIRST_AND_LAST; method++)
        table_add_line(&t, method, 0, q->chunks.count[0]);
    return t;
}

static void table_free(struct needle_table *table)
{
    for (int l = 0; l < table->n; l++)
        for (int k = 0; k < BENCH_COUNTS_MAX; k++) {
            struct needle_cell *cell = &table->lines[l].cells[k];
            samples_free(&cell->score_ms);
            samples_free(&cell->prefill_ms);
            samples_free(&cell->ttft_ms);
        }
    free(table->lines);
}

static char *line_name(const struct needle_line *line)
{
    if (line->method == EVERYTHING) return mem_string(method_names[line->method]);
    char *chunks = line->chunk_tokens == CHUNK_TOKENS_AUTO ? mem_string("spans")
                   : line->chunk_tokens                    ? mem_format("chunks of %d", line->chunk_tokens)
                                                           : mem_string("single tokens");
    char *name = line->method == IMPORTANCE ? mem_format("importance, look-ahead %d, %s", line->look_ahead, chunks)
                                            : mem_format("%s, %s", method_names[line->method], chunks);
    free(chunks);
    return name;
}

static void needle_add_rows(struct quality *q, struct needle_table *table, int length)
{
    for (int l = 0; l < table->n; l++) {
        struct needle_line *line = &table->lines[l];
        char *name = line_name(line);
        for (int k = 0; k < (line->method == EVERYTHING ? 1 : q->n_keep_rates); k++) {
            struct needle_cell *cell = &line->cells[k];
            double n = (double)q->flags->documents, rate = line->method == EVERYTHING ? 1 : q->keep_rates[k];
            json_t *row = json_pack("{s:s,s:i,s:s,s:s,s:f,s:I,s:f,s:f,s:f,s:f,s:f}", "task", "needle", "tokens", length,
                                    "method", method_names[line->method], "name", name, "keep_rate", rate, "documents",
                                    (json_int_t)q->flags->documents, "right", cell->right / n, "kept_share",
                                    cell->kept_share / n, "ttft_ms", samples_percentile(&cell->ttft_ms, 50), "score_ms",
                                    samples_percentile(&cell->score_ms, 50), "prefill_ms",
                                    samples_percentile(&cell->prefill_ms, 50));
            json_object_set_new(row, "look_ahead", line->look_ahead ? json_integer(line->look_ahead) : json_null());
            json_object_set_new(row, "chunk_tokens",
                                line->method == EVERYTHING                ? json_null()
                                : line->chunk_tokens == CHUNK_TOKENS_AUTO ? json_string("auto")
                                                                          : json_integer(line->chunk_tokens));
            json_object_set_new(row, "paper_exact", json_boolean(q->flags->paper_exact));
            json_array_append_new(q->rows, row);
        }
        free(name);
    }
}

static void needle_print(const struct quality *q, struct needle_table *table, int length)
{
    if (q->flags->json) return;
    printf("\n%d tokens, %lld documents: right answers and median TTFT in ms, by keep rate\n", length,
           (long long)q->flags->documents);
    printf("%-42s", "");
    for (int k = 0; k < q->n_keep_rates; k++)
        printf(" | %13g", q->keep_rates[k]);
    printf("\n");
    for (int l = 0; l < table->n; l++) {
        struct needle_line *line = &table->lines[l];
        char *name = line_name(line);
        printf("%-42s", name);
        for (int k = 0; k < (line->method == EVERYTHING ? 1 : q->n_keep_rates); k++)
            printf(" | %5.1f%% %6.1f", 100.0 * line->cells[k].right / (double)q->flags->documents,
                   samples_percentile(&line->cells[k].ttft_ms, 50));
        printf("\n");
        free(name);
    }
    fflush(stdout);
}

static enum status needle_run_length(struct quality *q, int length)
{
    enum status status = STATUS_OK;
    struct needle_table table = table_create(q);
    for (int d = 0; d < q->flags->documents && status == STATUS_OK; d++) {
        struct task_document document;
        status = needle_make_document(q, length, d, &document);
        if (status != STATUS_OK) break;
        status = needle_ask_all(q, &table, &document, d);
        task_document_free(&document);
        q->tokens = NULL;
        progress_draw(&q->progress, d + 1, q->flags->documents, d + 1 == q->flags->documents,
                      "%d tokens: %d of %lld documents", length, d + 1, (long long)q->flags->documents);
    }
    if (status == STATUS_OK) {
        needle_add_rows(q, &table, length);
        needle_print(q, &table, length);
    }
    table_free(&table);
    return status;
}

enum status quality_run_needle(struct quality *q)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < q->lengths.n && status == STATUS_OK; i++)
        status = needle_run_length(q, q->lengths.count[i]);
    return status;
}

// ---- the page -------------------------------------------------------------------------------------------------------

enum { PLOT_LINES_MAX = 64 };

struct needle_plot {
    struct report_series series[PLOT_LINES_MAX];
    double x[PLOT_LINES_MAX][BENCH_COUNTS_MAX + 1], y[PLOT_LINES_MAX][BENCH_COUNTS_MAX + 1];
    int n;
    double everything; // the value with everything kept, where all lines end
};

static void plot_add_rows(struct needle_plot *plot, const json_t *rows, int length, const char *key)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        if ((int)bench_row_number(row, "tokens") != length) continue;
        const char *name = json_string_value(json_object_get(row, "name"));
        if (strcmp(name, method_names[EVERYTHING]) == 0) {
            plot->everything = bench_row_number(row, key);
            continue;
        }
        int n = plot->n;
        if (!n || strcmp(plot->series[n - 1].name, name) != 0) {
            if (n == PLOT_LINES_MAX) break;
            plot->series[n] = (struct report_series){name, plot->x[n], plot->y[n], 0};
            n = ++plot->n;
        }
        struct report_series *line = &plot->series[n - 1];
        plot->x[n - 1][line->n] = bench_row_number(row, "keep_rate");
        plot->y[n - 1][line->n++] = bench_row_number(row, key);
    }
}

// Sorts the points of line `s` by keep rate: the flag usually lists the rates in descending order.
static void plot_sort_line(struct needle_plot *plot, int s)
{
    double *x = plot->x[s], *y = plot->y[s];
    for (int a = 0; a < plot->series[s].n; a++)
        for (int b = a + 1; b < plot->series[s].n; b++)
            if (x[b] < x[a]) {
                double t = x[a];
                x[a] = x[b], x[b] = t;
                t = y[a];
                y[a] = y[b], y[b] = t;
            }
}

// A plot of `key` by keep rate for one prompt length, one line per method.
static void needle_report_length(struct report *report, const struct quality *q, int length, const char *key,
                                 const char *title, const char *y_title)
{
    struct needle_plot *plot = mem_alloc(sizeof *plot);
    plot->everything = NAN;
    plot_add_rows(plot, q->rows, length, key);
    for (int s = 0; s < plot->n; s++) {
        plot_sort_line(plot, s);
        struct report_series *line = &plot->series[s];
        plot->x[s][line->n] = 1;
        plot->y[s][line->n++] = plot->everything;
    }
    char *text = mem_format("%s, prompts of %d tokens", title, length);
    report_lines(
        report,
        &(struct report_chart){
            .title = text, .x_title = "keep rate", .y_title = y_title, .series = plot->series, .n_series = plot->n});
    free(text);
    free(plot);
}

void quality_report_needle(struct report *report, const struct quality *q)
{
    static const char *const columns[] = {"tokens=Tokens",         "name=Selected by",    "keep_rate=Keep rate",
                                          "kept_share=Kept share", "right=Right answers", "score_ms=Scoring ms",
                                          "prefill_ms=Prefill ms", "ttft_ms=TTFT ms"};
    const struct quality_flags *f = q->flags;
    report_paragraph(report,
                     "Main model %s, speculator %s; %lld documents of each length, seed %lld. Times are medians.",
                     f->main, f->spec, (long long)f->documents, (long long)f->seed);
    for (int i = 0; i < q->lengths.n; i++) {
        needle_report_length(report, q, q->lengths.count[i], "right", "Right answers", "share");
        needle_report_length(report, q, q->lengths.count[i], "ttft_ms", "TTFT", "ms");
    }
    report_table(report, q->rows, columns, sizeof columns / sizeof columns[0]);
}
