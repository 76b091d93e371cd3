// SPDX-License-Identifier: Apache-2.0
// forepack bench prefill-quality: what keeping fewer prompt tokens costs in right answers and saves in time. Both tasks
// run a main model and a speculator in this process, one prompt at a time, on the path that a cluster's nodes take.
//
//   needle   right answers at each keep rate, when importance chooses what to keep and when nothing does: every way to
//            choose gives the same selection (speculator/select.h) other numbers to rank the tokens by, at the same
//            budget and with the same tokens kept beyond it
//   ttft     with random weights of any shape: time to the first token with and without speculation, over what the
//            operations left would take
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/commands/bench.h"
#include "bench/commands/model_pair.h"
#include "bench/needle.h"
#include "bench/passes.h"
#include "bench/quantiles.h"
#include "bench/random.h"
#include "bench/report.h"
#include "bench/work.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "speculator/select.h"

static struct {
    char *task, *main, *spec, *shape, *spec_shape, *backend, *dtype, *prompt_tokens, *keep_rates, *look_aheads,
        *chunk_tokens, *report;
    int64_t threads, token_budget, documents, seed, pool_window, tail_tokens, rounds;
    bool paper_exact, json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "task", .type = OPTION_CHOICE, .value = &o.task, .default_text = "needle", .choices = "needle|ttft",
     .help = "needle: right answers of the demo pair; ttft: time to the first token, random weights"},
    {.name = "-Models"},
    {.name = "main", .type = OPTION_STRING, .value = &o.main, .default_text = "deploy/demo-model/main",
     .help = "needle: directory of the main model"},
    {.name = "spec", .type = OPTION_STRING, .value = &o.spec, .default_text = "deploy/demo-model/speculator",
     .help = "needle: directory of the speculator's model"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .default_text = "bench/shapes/llama-3.2-1b.json",
     .help = "ttft: a config.json, the main model's"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &o.spec_shape, .default_text = "bench/shapes/llama-110m.json",
     .help = "ttft: a config.json, the speculator's"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "what computes; auto is a GPU where there is one, else the CPU"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "auto",
     .choices = MODEL_DTYPES, .help = "type of the weights of both; auto is the checkpoint's"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is all the process may use"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass"},
    {.name = "-What is kept"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .default_text = "256,512,1024,2048,4080",
     .unit = "tokens", .help = "lengths of the prompts"},
    {.name = "keep-rates", .type = OPTION_STRING, .value = &o.keep_rates, .default_text = "0.7,0.5,0.3,0.1,0.05",
     .help = "shares to keep; everything kept is always there to compare with"},
    {.name = "look-aheads", .type = OPTION_STRING, .value = &o.look_aheads, .default_text = "8,1", .unit = "steps",
     .help = "tokens that look back, 1 to 64"},
    {.name = "chunk-tokens", .type = OPTION_STRING, .value = &o.chunk_tokens, .default_text = "32,0", .unit = "tokens",
     .help = "kept or dropped together; 0 is single tokens. Other ways to choose have the first of these"},
    {.name = "pool-window", .type = OPTION_INT, .value = &o.pool_window, .default_text = "13", .min = 1, .max = 1023,
     .unit = "tokens", .help = "odd width of the average along the prompt"},
    {.name = "tail-tokens", .type = OPTION_INT, .value = &o.tail_tokens, .default_text = "128", .max = 1e9, .unit = "tokens",
     .help = "end of the prompt kept beyond the budget, at most a quarter of it"},
    {.name = "paper-exact", .type = OPTION_BOOL, .value = &o.paper_exact,
     .help = "only the paper's selection: nothing forced or added"},
    {.name = "-How"},
    {.name = "documents", .type = OPTION_INT, .value = &o.documents, .default_text = "100", .min = 1, .max = 1000000,
     .help = "needle: prompts of each length"},
    {.name = "seed", .type = OPTION_INT, .value = &o.seed, .default_text = "1", .help = "of documents and random choices"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "3", .min = 1, .max = 1000,
     .help = "ttft: of which the middle one is told"},
    {.name = "report", .type = OPTION_STRING, .value = &o.report, .help = "write a page with plots to this file, too"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { ANSWER_TOKENS = 8, CHOICES_MAX = 64 };

// A way to choose what is kept.
enum way { EVERYTHING, IMPORTANCE, RANDOM, LAST, FIRST_AND_LAST };
static const char *const way_names[] = {"everything", "importance", "random", "last", "first+last"};

// One line of the table at one length: a way to choose, and how its answers were, keep rate by keep rate.
struct line {
    enum way way;
    int look_ahead, chunk_tokens;
    struct cell {
        int right;
        double kept; // sum over documents of the share
        struct samples score_ms, prefill_ms, ttft_ms;
    } cells[BENCH_COUNTS_MAX];
};

struct quality {
    struct bench_counts lengths, look_aheads, chunks;
    double keep_rates[BENCH_COUNTS_MAX];
    int n_keep_rates;
    struct pair *pair;
    struct tokenizer *tokenizer;
    struct line *lines; // of the length at hand
    int n_lines;
    int32_t *tokens; // the prompt at hand
    int n;
    float *importance; // [most]
    struct progress progress;
    json_t *rows;
};

// ---- choosing ----

static int tail_of(int n)
{
    return o.tail_tokens < n / 4 ? (int)o.tail_tokens : n / 4;
}

// What ranks the tokens when no model does. The tail comes last: it is kept anyway, and none of the budget is to be
// wasted on it, so these ways keep as many tokens as importance does, or more.
static void rank_blindly(enum way way, int n, struct random_source *random, float *importance)
{
    int ranked = o.paper_exact ? n : n - tail_of(n);
    for (int i = 0; i < n; i++) {
        float rank = way == RANDOM ? (float)random_unit(random)
                     : way == LAST ? (float)i
                                   : (float)abs(2 * i - (ranked - 1));
        importance[i] = i < ranked ? rank : -1;
    }
}

static int choose(const struct quality *q, const struct line *line, double keep_rate, struct token_range **kept_p)
{
    const struct select_policy policy = {.keep_rate = keep_rate,
                                         .chunk_tokens = line->chunk_tokens,
                                         .paper_exact = o.paper_exact,
                                         .keep_first = line->way != LAST && q->tokens[0] == pair_spec(q->pair)->bos_id,
                                         .tail_tokens = tail_of(q->n)};
    return select_kept(q->importance, q->n, &policy, kept_p);
}

// ---- needle: one document ----

static enum status make_document(struct quality *q, int length, int number, struct needle *needle)
{
    enum status status =
        needle_make(q->tokenizer, (uint64_t)o.seed, (uint64_t)length << 32 | (uint64_t)number, length, needle);
    if (status != STATUS_OK) return status;
    free(q->tokens);
    q->tokens = NULL;
    status = tokenizer_encode(q->tokenizer, needle->prompt, strlen(needle->prompt), TOKENIZER_ADD_SPECIAL, &q->tokens,
                              &q->n);
    if (status == STATUS_OK && q->n > length)
        status = status_fail(STATUS_INTERNAL, "a document of %d tokens, at most %d were meant", q->n, length);
    return status;
}

// Asks the main model with the kept ranges (none: with everything) and notes how it did.
static enum status ask(struct quality *q, const struct needle *needle, const struct token_range *kept, int n_kept,
                       int64_t score_us, struct cell *cell)
{
    int32_t tokens[ANSWER_TOKENS], *expected;
    int n_expected, n_tokens = n_kept ? 0 : q->n;
    struct pair_answer answer = {.tokens = tokens};
    enum status status = pair_generate(q->pair, q->tokens, q->n, kept, n_kept, ANSWER_TOKENS, &answer);
    if (status == STATUS_OK)
        status = tokenizer_encode(q->tokenizer, needle->answer, strlen(needle->answer), 0, &expected, &n_expected);
    if (status != STATUS_OK) return status;
    for (int r = 0; r < n_kept; r++)
        n_tokens += kept[r].last - kept[r].first + 1;
    cell->right +=
        answer.stopped && answer.n == n_expected && memcmp(tokens, expected, (size_t)n_expected * sizeof *tokens) == 0;
    cell->kept += (double)n_tokens / q->n;
    samples_add(&cell->score_ms, (double)score_us / 1000);
    samples_add(&cell->prefill_ms, (double)answer.prefill_us / 1000);
    samples_add(&cell->ttft_ms, (double)(score_us + answer.prefill_us) / 1000);
    free(expected);
    return STATUS_OK;
}

static enum status score(struct quality *q, int look_ahead, int64_t *score_us_p)
{
    struct prefill prefill;
    prefill_defaults(&prefill);
    prefill.look_ahead = look_ahead;
    prefill.pool_window = (int)o.pool_window;
    return pair_score(q->pair, q->tokens, q->n, &prefill, q->importance, score_us_p);
}

// Lines that rank alike stand together: the prompt is scored once for all of them, and each of their answers has all of
// that time in it.
static enum status ask_all(struct quality *q, const struct needle *needle, int number)
{
    struct random_source random = random_stream((uint64_t)o.seed + 1, (uint64_t)number);
    enum status status = STATUS_OK;
    int64_t score_us = 0;
    for (int l = 0; l < q->n_lines && status == STATUS_OK; l++) {
        struct line *line = &q->lines[l];
        if (line->way == EVERYTHING) {
            status = ask(q, needle, NULL, 0, 0, &line->cells[0]);
            continue;
        }
        bool scored = l > 0 && q->lines[l - 1].way == IMPORTANCE && q->lines[l - 1].look_ahead == line->look_ahead;
        if (line->way != IMPORTANCE) {
            score_us = 0;
            rank_blindly(line->way, q->n, &random, q->importance);
        } else if (!scored) {
            status = score(q, line->look_ahead, &score_us);
        }
        for (int k = 0; k < q->n_keep_rates && status == STATUS_OK; k++) {
            struct token_range *kept;
            int n_kept = choose(q, line, q->keep_rates[k], &kept);
            status = ask(q, needle, kept, n_kept, score_us, &line->cells[k]);
            free(kept);
        }
    }
    return status;
}

// ---- needle: all lengths ----

static void add_line(struct quality *q, enum way way, int look_ahead, int chunk_tokens)
{
    q->lines[q->n_lines++] = (struct line){.way = way, .look_ahead = look_ahead, .chunk_tokens = chunk_tokens};
}

static void make_lines(struct quality *q)
{
    q->lines = mem_alloc_array((size_t)(q->look_aheads.n * q->chunks.n + 4), sizeof *q->lines);
    add_line(q, EVERYTHING, 0, 0);
    for (int a = 0; a < q->look_aheads.n; a++)
        for (int c = 0; c < q->chunks.n; c++)
            add_line(q, IMPORTANCE, q->look_aheads.count[a], q->chunks.count[c]);
    for (enum way way = RANDOM; way <= FIRST_AND_LAST; way++)
        add_line(q, way, 0, q->chunks.count[0]);
}

static void free_lines(struct quality *q)
{
    for (int l = 0; l < q->n_lines; l++)
        for (int k = 0; k < BENCH_COUNTS_MAX; k++) {
            struct cell *cell = &q->lines[l].cells[k];
            samples_free(&cell->score_ms);
            samples_free(&cell->prefill_ms);
            samples_free(&cell->ttft_ms);
        }
    free(q->lines);
    q->lines = NULL;
    q->n_lines = 0;
}

static char *line_name(const struct line *line)
{
    if (line->way == EVERYTHING) return mem_string(way_names[line->way]);
    char *chunks = line->chunk_tokens ? mem_format("chunks of %d", line->chunk_tokens) : mem_string("single tokens");
    char *name = line->way == IMPORTANCE ? mem_format("importance, look-ahead %d, %s", line->look_ahead, chunks)
                                         : mem_format("%s, %s", way_names[line->way], chunks);
    free(chunks);
    return name;
}

static void add_rows(struct quality *q, int length)
{
    for (int l = 0; l < q->n_lines; l++) {
        struct line *line = &q->lines[l];
        char *name = line_name(line);
        for (int k = 0; k < (line->way == EVERYTHING ? 1 : q->n_keep_rates); k++) {
            struct cell *cell = &line->cells[k];
            double n = (double)o.documents, rate = line->way == EVERYTHING ? 1 : q->keep_rates[k];
            json_t *row =
                json_pack("{s:s,s:i,s:s,s:s,s:f,s:I,s:f,s:f,s:f,s:f,s:f}", "task", "needle", "tokens", length, "method",
                          way_names[line->way], "name", name, "keep_rate", rate, "documents", (json_int_t)o.documents,
                          "right", cell->right / n, "kept_share", cell->kept / n, "ttft_ms",
                          samples_percentile(&cell->ttft_ms, 50), "score_ms", samples_percentile(&cell->score_ms, 50),
                          "prefill_ms", samples_percentile(&cell->prefill_ms, 50));
            json_object_set_new(row, "look_ahead", line->look_ahead ? json_integer(line->look_ahead) : json_null());
            json_object_set_new(row, "chunk_tokens",
                                line->way == EVERYTHING ? json_null() : json_integer(line->chunk_tokens));
            json_object_set_new(row, "paper_exact", json_boolean(o.paper_exact));
            json_array_append_new(q->rows, row);
        }
        free(name);
    }
}

static void print_lines(struct quality *q, int length)
{
    if (o.json) return;
    printf("\n%d tokens, %lld documents: right answers and median TTFT in ms by keep rate\n", length,
           (long long)o.documents);
    printf("%-42s", "");
    for (int k = 0; k < q->n_keep_rates; k++)
        printf(" | %13g", q->keep_rates[k]);
    printf("\n");
    for (int l = 0; l < q->n_lines; l++) {
        struct line *line = &q->lines[l];
        char *name = line_name(line);
        printf("%-42s", name);
        for (int k = 0; k < (line->way == EVERYTHING ? 1 : q->n_keep_rates); k++)
            printf(" | %5.1f%% %6.1f", 100.0 * line->cells[k].right / (double)o.documents,
                   samples_percentile(&line->cells[k].ttft_ms, 50));
        printf("\n");
        free(name);
    }
    fflush(stdout);
}

static enum status needle_length(struct quality *q, int length)
{
    enum status status = STATUS_OK;
    make_lines(q);
    for (int d = 0; d < o.documents && status == STATUS_OK; d++) {
        struct needle needle;
        status = make_document(q, length, d, &needle);
        if (status != STATUS_OK) break;
        status = ask_all(q, &needle, d);
        needle_free(&needle);
        progress_draw(&q->progress, d + 1, o.documents, d + 1 == o.documents, "%d tokens: %d of %lld documents", length,
                      d + 1, (long long)o.documents);
    }
    if (status == STATUS_OK) {
        add_rows(q, length);
        print_lines(q, length);
    }
    free_lines(q);
    return status;
}

// ---- ttft ----

// Operations of a prefill of n tokens and `steps` passes of one row after it.
static double gflop(const struct model_config *config, double n, int steps)
{
    const struct work_model w = work_model_of(config, 1, 1);
    double rows = n + steps, pairs = n * (n + 1) / 2 + steps * n;
    return (2 * (w.layer_weights * rows + w.head_weights * (1 + steps)) + w.attention_flop * pairs) / 1e9;
}

struct timed {
    struct samples plain_ms, score_ms, ttft_ms;
    int kept;
};

static enum status time_once(struct quality *q, int look_ahead, int chunk_tokens, double keep_rate, bool with_plain,
                             struct timed *t)
{
    int32_t token;
    struct pair_answer answer = {.tokens = &token};
    enum status status = STATUS_OK;
    if (with_plain) {
        status = pair_generate(q->pair, q->tokens, q->n, NULL, 0, 1, &answer);
        if (status == STATUS_OK) samples_add(&t->plain_ms, (double)answer.prefill_us / 1000);
    }
    int64_t score_us = 0;
    if (status == STATUS_OK) status = score(q, look_ahead, &score_us);
    if (status != STATUS_OK) return status;
    const struct line line = {.way = IMPORTANCE, .chunk_tokens = chunk_tokens};
    struct token_range *kept;
    int n_kept = choose(q, &line, keep_rate, &kept);
    t->kept = 0;
    for (int r = 0; r < n_kept; r++)
        t->kept += kept[r].last - kept[r].first + 1;
    status = pair_generate(q->pair, q->tokens, q->n, kept, n_kept, 1, &answer);
    free(kept);
    samples_add(&t->score_ms, (double)score_us / 1000);
    samples_add(&t->ttft_ms, (double)(score_us + answer.prefill_us) / 1000);
    return status;
}

static void add_timing(struct quality *q, int look_ahead, double keep_rate, struct timed *t, double plain_ms)
{
    double whole = gflop(pair_main(q->pair), q->n, 0), spec = gflop(pair_spec(q->pair), q->n, look_ahead - 1);
    double left = gflop(pair_main(q->pair), t->kept, 0), kept_share = (double)t->kept / q->n;
    double ttft_ms = samples_percentile(&t->ttft_ms, 50), score_ms = samples_percentile(&t->score_ms, 50);
    double speed_up = plain_ms / ttft_ms;
    double bound = 1 / (kept_share + spec / whole), bound_flops = whole / (left + spec);
    if (!o.json)
        printf("%8d %5g %9d | %6.3f | %10.1f | %10.1f %10.1f | %8.2f | %8.2f %5.1f%% | %8.2f %5.1f%%\n", q->n,
               keep_rate, look_ahead, kept_share, plain_ms, score_ms, ttft_ms, speed_up, bound, 100 * speed_up / bound,
               bound_flops, 100 * speed_up / bound_flops);
    fflush(stdout);
    json_array_append_new(
        q->rows, json_pack("{s:s,s:i,s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "task", "ttft",
                           "tokens", q->n, "keep_rate", keep_rate, "look_ahead", look_ahead, "kept_share", kept_share,
                           "plain_ms", plain_ms, "score_ms", score_ms, "ttft_ms", ttft_ms, "speed_up", speed_up,
                           "bound", bound, "share", speed_up / bound, "bound_flops", bound_flops, "share_flops",
                           speed_up / bound_flops, "main_gflop", whole, "kept_gflop", left, "spec_gflop", spec));
}

// Every round runs everything kept and each keep rate, so that what is compared shares the machine's moods.
static enum status ttft_length(struct quality *q, int length, int look_ahead)
{
    int n_vocab = pair_main(q->pair)->vocab_size, n_spec = pair_spec(q->pair)->vocab_size;
    free(q->tokens);
    q->n = length;
    q->tokens = mem_alloc_array((size_t)length, sizeof *q->tokens);
    passes_tokens(q->tokens, length, n_vocab < n_spec ? n_vocab : n_spec);
    struct timed *timed = mem_alloc_array((size_t)q->n_keep_rates, sizeof *timed);
    enum status status = STATUS_OK;
    for (int round = 0; round < o.rounds && status == STATUS_OK; round++)
        for (int k = 0; k < q->n_keep_rates && status == STATUS_OK; k++) {
            progress_draw(&q->progress, round * q->n_keep_rates + k, o.rounds * q->n_keep_rates, false,
                          "%d tokens: round %d of %lld", length, round + 1, (long long)o.rounds);
            status = time_once(q, look_ahead, q->chunks.count[0], q->keep_rates[k], k == 0, &timed[k]);
        }
    double plain_ms = samples_percentile(&timed[0].plain_ms, 50);
    for (int k = 0; k < q->n_keep_rates; k++) {
        if (status == STATUS_OK) add_timing(q, look_ahead, q->keep_rates[k], &timed[k], plain_ms);
        samples_free(&timed[k].plain_ms);
        samples_free(&timed[k].score_ms);
        samples_free(&timed[k].ttft_ms);
    }
    free(timed);
    return status;
}

static enum status run_ttft(struct quality *q)
{
    if (!o.json) {
        printf("main %s, speculator %s, random weights, %s, %lld rounds\n\n", o.shape, o.spec_shape, o.dtype,
               (long long)o.rounds);
        printf("%8s %5s %9s | %6s | %10s | %10s %10s | %8s | %15s | %15s\n", "", "keep", "", "", "all kept", "scoring",
               "TTFT", "", "by tokens kept", "by operations");
        printf("%8s %5s %9s | %6s | %10s | %10s %10s | %8s | %8s %6s | %8s %6s\n", "tokens", "rate", "lookahead",
               "kept", "ms", "ms", "ms", "speed-up", "bound", "share", "bound", "share");
    }
    // Pages of the weights and the caches of both: a short run of each is not counted.
    struct timed unused = {0};
    double rate = q->keep_rates[0];
    q->n = 64;
    q->tokens = mem_alloc_array((size_t)q->n, sizeof *q->tokens);
    enum status status = time_once(q, 1, q->chunks.count[0], rate, true, &unused);
    samples_free(&unused.plain_ms);
    samples_free(&unused.score_ms);
    samples_free(&unused.ttft_ms);
    for (int i = 0; i < q->lengths.n; i++)
        for (int a = 0; a < q->look_aheads.n && status == STATUS_OK; a++)
            status = ttft_length(q, q->lengths.count[i], q->look_aheads.count[a]);
    return status;
}

// ---- the page ----

static double number_of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

// A plot of `key` over the keep rate for one length, a line for each way to choose; all of them end in "everything".
static void report_length(struct report *report, const struct quality *q, int length, const char *key,
                          const char *title, const char *y_title)
{
    struct report_series series[CHOICES_MAX];
    double x[CHOICES_MAX][BENCH_COUNTS_MAX + 1], y[CHOICES_MAX][BENCH_COUNTS_MAX + 1], everything = NAN;
    int n = 0;
    size_t i;
    json_t *row;
    json_array_foreach(q->rows, i, row)
    {
        if ((int)number_of(row, "tokens") != length) continue;
        const char *name = json_string_value(json_object_get(row, "name"));
        if (strcmp(name, way_names[EVERYTHING]) == 0) {
            everything = number_of(row, key);
            continue;
        }
        if (!n || strcmp(series[n - 1].name, name) != 0) {
            if (n == CHOICES_MAX) break;
            series[n] = (struct report_series){name, x[n], y[n], 0};
            n++;
        }
        struct report_series *line = &series[n - 1];
        x[n - 1][line->n] = number_of(row, "keep_rate");
        y[n - 1][line->n++] = number_of(row, key);
    }
    for (int s = 0; s < n; s++) { // keep rates come in descending order as a rule; x must ascend
        for (int a = 0; a < series[s].n; a++)
            for (int b = a + 1; b < series[s].n; b++)
                if (x[s][b] < x[s][a]) {
                    double t = x[s][a];
                    x[s][a] = x[s][b], x[s][b] = t;
                    t = y[s][a];
                    y[s][a] = y[s][b], y[s][b] = t;
                }
        x[s][series[s].n] = 1;
        y[s][series[s].n++] = everything;
    }
    char *text = mem_format("%s, prompts of %d tokens", title, length);
    report_lines(report,
                 &(struct report_chart){
                     .title = text, .x_title = "keep rate", .y_title = y_title, .series = series, .n_series = n});
    free(text);
}

static void write_report(struct report *report, const struct quality *q)
{
    bool needle = strcmp(o.task, "needle") == 0;
    if (needle) {
        static const char *const columns[] = {"tokens=Tokens",           "name=Kept by",        "keep_rate=Keep rate",
                                              "kept_share=Kept in fact", "right=Right answers", "score_ms=Scoring ms",
                                              "prefill_ms=Prefill ms",   "ttft_ms=TTFT ms"};
        report_paragraph(report, "%s answers, %s scores. %lld documents of each length, seed %lld. Times are medians.",
                         o.main, o.spec, (long long)o.documents, (long long)o.seed);
        for (int i = 0; i < q->lengths.n; i++) {
            report_length(report, q, q->lengths.count[i], "right", "Right answers", "share");
            report_length(report, q, q->lengths.count[i], "ttft_ms", "Time to the first token", "ms");
        }
        report_table(report, q->rows, columns, sizeof columns / sizeof columns[0]);
    } else {
        static const char *const columns[] = {"tokens=Tokens",
                                              "keep_rate=Keep rate",
                                              "look_ahead=Look-ahead",
                                              "kept_share=Kept in fact",
                                              "plain_ms=All kept ms",
                                              "score_ms=Scoring ms",
                                              "ttft_ms=TTFT ms",
                                              "speed_up=Speed-up",
                                              "bound=Bound by tokens kept",
                                              "share=Share of it",
                                              "bound_flops=Bound by operations",
                                              "share_flops=Share of it"};
        report_paragraph(report, "Main model %s, speculator %s, random weights, %s.", o.shape, o.spec_shape, o.dtype);
        report_table(report, q->rows, columns, sizeof columns / sizeof columns[0]);
    }
}

// ---- the command ----

static enum status check_lengths(const struct quality *q, bool needle)
{
    for (int i = 0; i < q->lengths.n; i++)
        if (needle && q->lengths.count[i] < NEEDLE_TOKENS_MIN)
            return status_fail(STATUS_INVALID, "--prompt-tokens %d: must be %d or more", q->lengths.count[i],
                               NEEDLE_TOKENS_MIN);
    if (o.pool_window % 2 == 0)
        return status_fail(STATUS_INVALID, "--pool-window %lld: must be odd", (long long)o.pool_window);
    return STATUS_OK;
}

static int most(const struct bench_counts *counts)
{
    int most = 0;
    for (int i = 0; i < counts->n; i++)
        most = counts->count[i] > most ? counts->count[i] : most;
    return most;
}

static enum status configure(struct quality *q, bool needle)
{
    enum status status = bench_counts_parse("prompt-tokens", o.prompt_tokens, 1, 10000000, &q->lengths);
    if (status == STATUS_OK)
        status = bench_counts_parse("look-aheads", o.look_aheads, 1, LOOK_AHEAD_MAX, &q->look_aheads);
    if (status == STATUS_OK) status = bench_counts_parse("chunk-tokens", o.chunk_tokens, 0, 1000000, &q->chunks);
    if (status == STATUS_OK)
        status = bench_reals_parse("keep-rates", o.keep_rates, 1e-6, 1, q->keep_rates, &q->n_keep_rates);
    return status == STATUS_OK ? check_lengths(q, needle) : status;
}

static enum status open_pair(struct quality *q, bool needle)
{
    const struct pair_options pair = {
        .main = needle ? o.main : o.shape,
        .spec = needle ? o.spec : o.spec_shape,
        .dummy = !needle,
        .backend = o.backend,
        .dtype = o.dtype,
        .threads = (int)o.threads,
        .token_budget = (int)o.token_budget,
        .max_prompt = most(&q->lengths),
        .max_output = ANSWER_TOKENS,
        .look_ahead = most(&q->look_aheads),
    };
    enum status status = pair_open(&pair, &q->pair);
    if (status == STATUS_OK && needle) status = tokenizer_open(o.main, &q->tokenizer);
    q->importance = mem_alloc_array((size_t)pair.max_prompt, sizeof *q->importance);
    return status;
}

static enum status run_needle(struct quality *q)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < q->lengths.n && status == STATUS_OK; i++)
        status = needle_length(q, q->lengths.count[i]);
    return status;
}

int bench_quality(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench prefill-quality [--task needle|ttft] [options]\n"
                 "Right answers and time to the first token over the share of the prompt that is kept.",
                 argc, argv, NULL);
    struct quality q = {.rows = json_array()};
    struct report *report = NULL;
    bool needle = strcmp(o.task, "needle") == 0;
    enum status status = configure(&q, needle);
    if (status == STATUS_OK && o.report) status = report_open(o.report, "forepack bench prefill-quality", &report);
    if (status == STATUS_OK) status = open_pair(&q, needle);
    if (status == STATUS_OK) status = needle ? run_needle(&q) : run_ttft(&q);
    if (status == STATUS_OK && o.json) bench_print_json(q.rows);
    if (status == STATUS_OK && report) write_report(report, &q);
    if (report) {
        enum status written = report_close(report);
        if (status == STATUS_OK) status = written;
    }
    int code = status == STATUS_OK ? 0 : report_failure(status);
    pair_close(q.pair);
    tokenizer_free(q.tokenizer);
    free(q.tokens);
    free(q.importance);
    json_decref(q.rows);
    options_free(options);
    return code;
}
