// SPDX-License-Identifier: Apache-2.0
// forepack calibrate: generates the main model's answers to the prompts of a file at every keep rate, and fits a
// calibration (speculator/calibration_fit.h). Writes the calibration next to the speculator's weights.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "cli/engine/calibrate_picture.h"
#include "cli/engine/calibrate_rows.h"
#include "cli/engine/calibrate_sample.h"
#include "cli/engine/commands.h"
#include "cli/engine/model_pair.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "lib/base/fnv.h"
#include "lib/base/mem.h"
#include "lib/base/new_file.h"
#include "lib/text/tokenizer.h"
#include "speculator/calibration_fit.h"

static struct {
    char *main, *spec, *prompts, *output, *picture, *backend, *dtype;
    int64_t threads, token_budget, max_seqs, max_tokens, look_ahead, chunk_tokens, pool_window, tail_tokens,
        pinned_turn_tokens;
    double quality;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "model", .type = OPTION_STRING, .value = &o.main, .placeholder = "DIR",
     .help = "directory of the main model (required)"},
    {.name = "spec", .type = OPTION_STRING, .value = &o.spec, .placeholder = "DIR",
     .help = "directory of the speculator's model (required)"},
    {.name = "prompts", .type = OPTION_STRING, .value = &o.prompts, .placeholder = "FILE",
     .help = "JSON Lines (required). Each row has prompt, token_ids or messages. It may have answer, the right answer "
             "(default: the answer from the full prompt), and task, a group of prompts "
             "for which the loss is bounded separately"},
    {.name = "output", .type = OPTION_STRING, .value = &o.output, .placeholder = "FILE",
     .help = "file to write; default: " CALIBRATION_FILE " in the speculator's directory, which it reads at start"},
    {.name = "picture", .type = OPTION_STRING, .value = &o.picture, .placeholder = "FILE",
     .help = "also draw the right answers by keep rate to this SVG file"},
    {.name = "max-tokens", .type = OPTION_INT, .value = &o.max_tokens, .default_text = "64", .min = 1, .max = 4096,
     .unit = "tokens", .help = "longest answer; longer answers are cut"},
    {.name = "quality", .type = OPTION_REAL, .value = &o.quality, .default_text = "0.99", .min = 0.01, .max = 1,
     .help = "quality of the printed table; the calibration covers every quality"},
    {.name = "-Options that the calibration is for"},
    {.name = "look-ahead", .type = OPTION_INT, .value = &o.look_ahead, .default_text = "8", .min = 1,
     .max = LOOK_AHEAD_MAX, .unit = "tokens", .help = "look-ahead tokens"},
    {.name = "chunk-tokens", .type = OPTION_INT, .value = &o.chunk_tokens, .minus_one = "auto",
     .default_text = "auto", .max = 4096, .unit = "tokens",
     .help = "prompt tokens that are kept or pruned together: auto is sentences and lines, 0 is single tokens"},
    {.name = "pool-window", .type = OPTION_INT, .value = &o.pool_window, .default_text = "13", .min = 1, .max = 1023,
     .unit = "tokens", .help = "smoothing window: odd width of the average along the prompt"},
    {.name = "tail-tokens", .type = OPTION_INT, .value = &o.tail_tokens, .default_text = "128", .max = 1e9,
     .unit = "tokens", .help = "tail window, as --tail-tokens of the router"},
    {.name = "pinned-turn-tokens", .type = OPTION_INT, .value = &o.pinned_turn_tokens, .default_text = "256",
     .max = 1048576, .unit = "tokens",
     .help = "tokens of a chat's last user turn that are always kept, as --pinned-turn-tokens of the router"},
    {.name = "-Running the models"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "auto is cuda if there is a GPU, else cpu"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "auto", .choices = MODEL_DTYPES,
     .help = "type of both models' weights; auto: as in the checkpoint"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is every core the process may use"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "32", .min = 1, .max = 1024,
     .help = "prompts computed together"},
    {0},
};
// clang-format on

struct run {
    struct tokenizer *tokenizer;
    struct model_pair *pair;
    struct prefill prefill;
    struct calibrate_rows rows;
    struct fit_document *documents;     // [rows.n]
    struct predicted_losses *predicted; // [rows.n]
    uint64_t *answers;                  // [rows.n] hashes of the answers from full prompts
    struct progress progress;
};

// --- measuring

// The answers to one document at each keep rate. The last rate keeps the full prompt.
struct answers {
    struct model_pair_prompt prompt;
    struct token_range *kept[QUALITY_RATES];
    struct model_pair_request *requests; // [QUALITY_RATES] one for each rate; borrowed
};

static int select_at(const struct run *run, const struct model_pair_prompt *prompt, double rate,
                     struct token_range **kept_p)
{
    return model_pair_select(run->pair, prompt, &run->prefill, rate, kept_p);
}

static void requests_make(const struct run *run, struct answers *a)
{
    for (int r = 0; r < QUALITY_RATES; r++) {
        const bool whole = r == QUALITY_RATES - 1;
        a->requests[r] = (struct model_pair_request){
            .tokens = a->prompt.tokens,
            .n = a->prompt.n,
            .n_kept = whole ? 0 : select_at(run, &a->prompt, quality_rates[r], &a->kept[r]),
            .max_tokens = (int)o.max_tokens,
            .answer = mem_alloc_array((size_t)o.max_tokens, sizeof(int32_t)),
        };
        a->requests[r].kept = a->kept[r];
    }
}

static bool text_is(const char *text, const char *answer) // ignores blanks at both ends
{
    text += strspn(text, " \t\n");
    answer += strspn(answer, " \t\n");
    size_t n = strlen(text), n_answer = strlen(answer);
    while (n && strchr(" \t\n", text[n - 1]))
        n--;
    while (n_answer && strchr(" \t\n", answer[n_answer - 1]))
        n_answer--;
    return n == n_answer && memcmp(text, answer, n) == 0;
}

static enum status answer_is_right(const struct run *run, const struct calibrate_row *row,
                                   const struct model_pair_request *r, const struct model_pair_request *whole,
                                   bool *right_p)
{
    if (!row->answer) {
        *right_p = r->stopped == whole->stopped && r->n_answer == whole->n_answer &&
                   memcmp(r->answer, whole->answer, (size_t)r->n_answer * sizeof *r->answer) == 0;
        return STATUS_OK;
    }
    char *text;
    TRY(tokenizer_decode(run->tokenizer, r->answer, r->n_answer, TOKENIZER_SKIP_SPECIAL | TOKENIZER_CONTINUATION, &text,
                         NULL));
    *right_p = r->stopped && text_is(text, row->answer);
    free(text);
    return STATUS_OK;
}

static enum status document_fill(const struct run *run, int i, const struct answers *a)
{
    struct fit_document *document = &run->documents[i];
    const struct model_pair_request *whole = &a->requests[QUALITY_RATES - 1];
    document->evidence = a->prompt.evidence;
    run->answers[i] = fnv1a(FNV_START, whole->answer, (size_t)whole->n_answer * sizeof *whole->answer);
    document->group = run->rows.rows[i].group;
    TRY(answer_is_right(run, &run->rows.rows[i], whole, whole, &document->counts));
    for (int r = 0; r < QUALITY_RATES - 1; r++)
        TRY(answer_is_right(run, &run->rows.rows[i], &a->requests[r], whole, &document->right[r]));
    return STATUS_OK;
}

// Scores n documents, and generates the main model's answers at every rate, packed as in a cluster.
static enum status batch_answer(const struct run *run, int first, int n, struct model_pair_prompt *prompts,
                                struct answers *answers, struct model_pair_request *requests)
{
    TRY(model_pair_score(run->pair, false, &run->prefill, prompts, n));
    for (int i = 0; i < n; i++) {
        answers[i].prompt = prompts[i];
        answers[i].requests = &requests[i * QUALITY_RATES];
        requests_make(run, &answers[i]);
    }
    TRY(model_pair_generate(run->pair, requests, n * QUALITY_RATES));
    for (int i = 0; i < n; i++)
        TRY(document_fill(run, first + i, &answers[i]));
    return STATUS_OK;
}

static enum status batch_run(const struct run *run, int first, int n)
{
    struct model_pair_prompt *prompts = mem_alloc_array((size_t)n, sizeof *prompts);
    struct answers *answers = mem_alloc_array((size_t)n, sizeof *answers);
    struct model_pair_request *requests = mem_alloc_array((size_t)n * QUALITY_RATES, sizeof *requests);
    for (int i = 0; i < n; i++) {
        const struct calibrate_row *row = &run->rows.rows[first + i];
        prompts[i] = (struct model_pair_prompt){
            .tokens = row->tokens,
            .n = row->n,
            .tail_tokens = prefill_tail_tokens((int)o.tail_tokens, row->n),
            .pinned = row->pinned,
            .n_pinned = row->n_pinned,
            .importance = mem_alloc_array((size_t)row->n, sizeof(float)),
        };
    }
    enum status status = batch_answer(run, first, n, prompts, answers, requests);
    for (int i = 0; i < n; i++) {
        free(prompts[i].importance);
        for (int r = 0; r < QUALITY_RATES; r++) {
            free(answers[i].kept[r]);
            free(requests[i * QUALITY_RATES + r].answer);
        }
    }
    free(requests);
    free(answers);
    free(prompts);
    return status;
}

static enum status measure(struct run *run)
{
    const int batch = (int)o.max_seqs;
    enum status status = STATUS_OK;
    run->documents = mem_alloc_array((size_t)run->rows.n, sizeof *run->documents);
    run->answers = mem_alloc_array((size_t)run->rows.n, sizeof *run->answers);
    for (int i = 0; i < run->rows.n && status == STATUS_OK; i += batch) {
        const int n = run->rows.n - i < batch ? run->rows.n - i : batch;
        status = batch_run(run, i, n);
        progress_draw(&run->progress, i + n, run->rows.n, i + n == run->rows.n, "%d of %d documents", i + n,
                      run->rows.n);
    }
    return status;
}

// --- the result

// Returns the share of right answers. Rate -1 means the full prompt, group -1 all documents.
static double share(const struct run *run, int group, int rate)
{
    int n = 0, right = 0;
    for (int i = 0; i < run->rows.n; i++) {
        const struct fit_document *d = &run->documents[i];
        if (group >= 0 && d->group != group) continue;
        n += rate < 0 || d->counts;
        right += rate < 0 ? d->counts : d->counts && d->right[rate];
    }
    return n ? (double)right / n : 0;
}

static json_t *group_json(const struct run *run, const struct calibration *calibration, int group)
{
    struct fit_outcome outcome = calibration_measure(calibration, run->documents, run->predicted, run->rows.n,
                                                     run->rows.n_groups, group, o.quality);
    json_t *rates = json_array();
    for (int r = 0; r < QUALITY_RATES - 1; r++)
        json_array_append_new(rates, json_real(share(run, group, r)));
    int n = 0;
    for (int i = 0; i < run->rows.n; i++)
        n += group < 0 || run->documents[i].group == group;
    return json_pack("{s:s,s:i,s:f,s:o,s:f,s:f,s:f}", "task", group < 0 ? "all" : run->rows.groups[group], "documents",
                     n, "full_right", share(run, group, -1), "kept_right", rates, "keep_rate", outcome.kept, "quality",
                     1 - outcome.loss, "unsure", outcome.unsure);
}

static void table_print(const json_t *groups)
{
    printf("%-12s | %9s | %10s | right of those at keep rate", "", "documents", "full right");
    printf("%*s| at quality %g, cross-validated\n%-12s |           |            |", 14, "", o.quality, "task");
    for (int r = 0; r < QUALITY_RATES - 1; r++)
        printf(" %5g", quality_rates[r]);
    printf("      | keep rate | right | kept whole\n");
    size_t i;
    json_t *group;
    json_array_foreach(groups, i, group)
    {
        const json_t *rates = json_object_get(group, "kept_right");
        printf("%-12s | %9lld | %8.1f %% |", json_string_value(json_object_get(group, "task")),
               (long long)json_integer_value(json_object_get(group, "documents")),
               100 * json_number_value(json_object_get(group, "full_right")));
        for (size_t r = 0; r < json_array_size(rates); r++)
            printf(" %5.1f", 100 * json_number_value(json_array_get(rates, r)));
        printf(" %% | %9.3f | %5.1f | %8.1f %%\n", json_number_value(json_object_get(group, "keep_rate")),
               100 * json_number_value(json_object_get(group, "quality")),
               100 * json_number_value(json_object_get(group, "unsure")));
    }
}

static void promise_print(const struct run *run, const struct calibration *calibration)
{
    const double highest = calibration_highest_quality(calibration);
    const int right = (int)lround(share(run, -1, -1) * run->rows.n), needed = calibration_documents_for(o.quality);
    if (highest > 0)
        printf("These prompts promise a quality of at most %g.", highest);
    else
        printf("These prompts promise no quality: every token will be kept.");
    if (right < needed)
        printf(" Quality %g needs at least %d prompts that are answered right; %d are.", o.quality, needed, right);
    printf("\n");
}

static json_t *measured_json(const struct run *run, const struct calibration *calibration)
{
    json_t *groups = json_array();
    json_array_append_new(groups, group_json(run, calibration, -1));
    for (int g = 0; g < run->rows.n_groups && run->rows.n_groups > 1; g++)
        json_array_append_new(groups, group_json(run, calibration, g));
    table_print(groups);
    promise_print(run, calibration);
    json_t *warnings = calibrate_sample_warnings(&run->rows, run->answers);
    size_t i;
    json_t *warning;
    json_array_foreach(warnings, i, warning) fprintf(stderr, "warning: %s\n", json_string_value(warning));
    return json_pack("{s:f,s:f,s:o,s:o}", "quality", o.quality, "highest_quality",
                     calibration_highest_quality(calibration), "groups", groups, "warnings", warnings);
}

// Replaces the file atomically: a speculator that starts meanwhile reads either the old or the new file.
static enum status file_replace(const char *path, const json_t *object)
{
    struct new_file file;
    TRY(new_file_open(&file, path));
    new_file_share(&file); // like the weights next to it
    if (json_dumpfd(object, file.fd, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) == 0) return new_file_commit(&file);
    enum status status = status_fail(STATUS_INTERNAL, "%s", strerror(errno));
    new_file_discard(&file);
    return status;
}

static enum status file_write(const char *path, const struct calibration *calibration, json_t *measured)
{
    json_t *object = calibration_to_json(calibration);
    json_object_set_new(object, "measured", measured);
    enum status status = file_replace(path, object);
    json_decref(object);
    if (status == STATUS_OK)
        printf("written to %s\n", path);
    else
        status_context(status, "%s: could not be written", path);
    return status;
}

static enum status fit_and_write(struct run *run, const char *path)
{
    struct calibration calibration = {
        .main = {model_pair_main_fingerprint(run->pair), tokenizer_fingerprint(run->tokenizer)},
        .speculator = {model_pair_spec_fingerprint(run->pair), model_pair_spec_tokenizer(run->pair)},
        .look_ahead = run->prefill.look_ahead,
        .chunk_tokens = run->prefill.chunk_tokens,
        .pool_window = run->prefill.pool_window,
        .tail_tokens = (int)o.tail_tokens};
    run->predicted = mem_alloc_array((size_t)run->rows.n, sizeof *run->predicted);
    TRY(calibration_fit(run->documents, run->rows.n, run->rows.n_groups, &calibration, run->predicted));
    json_t *measured = measured_json(run, &calibration);
    enum status status = o.picture ? calibrate_picture_write(o.picture, measured) : STATUS_OK;
    if (status == STATUS_OK) return file_write(path, &calibration, measured);
    json_decref(measured);
    return status;
}

// --- the command

static enum status check_flags(struct run *run)
{
    if (!o.main) return status_fail(STATUS_INVALID, "--model: the directory of the main model is required");
    if (!o.spec) return status_fail(STATUS_INVALID, "--spec: the directory of the speculator's model is required");
    if (!o.prompts) return status_fail(STATUS_INVALID, "--prompts: a file of prompts is required");
    prefill_defaults(&run->prefill);
    run->prefill.look_ahead = (int)o.look_ahead;
    run->prefill.chunk_tokens = (int)o.chunk_tokens;
    run->prefill.pool_window = (int)o.pool_window;
    return prefill_check(&run->prefill);
}

// Checks that the result can be written, before hours of measurements. The caller frees *path_p.
static enum status output_check(char **path_p)
{
    char *path = *path_p = o.output ? mem_string(o.output) : mem_format("%s/%s", o.spec, CALIBRATION_FILE);
    struct stat info;
    struct new_file file;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return status_fail(STATUS_INVALID, "%s: not a regular file, so it is not replaced", path);
    enum status status = new_file_open(&file, path);
    if (status != STATUS_OK) return status_context(status, "%s: could not be written", path);
    new_file_discard(&file);
    return STATUS_OK;
}

static enum status pair_open(struct run *run)
{
    int longest = 0;
    for (int i = 0; i < run->rows.n; i++)
        if (run->rows.rows[i].n > longest) longest = run->rows.rows[i].n;
    const struct model_pair_options pair = {.main = o.main,
                                            .spec = o.spec,
                                            .backend = o.backend,
                                            .dtype = o.dtype,
                                            .threads = (int)o.threads,
                                            .token_budget = (int)o.token_budget,
                                            .max_seqs = (int)o.max_seqs,
                                            .max_prompt = longest,
                                            .max_output = (int)o.max_tokens,
                                            .look_ahead = run->prefill.look_ahead};
    return model_pair_open(&pair, &run->pair);
}

static void run_fini(struct run *run)
{
    calibrate_rows_fini(&run->rows);
    free(run->documents);
    free(run->predicted);
    free(run->answers);
    model_pair_close(run->pair);
    tokenizer_free(run->tokenizer);
}

int engine_command_calibrate(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack calibrate --model DIR --spec DIR --prompts FILE [options]\n"
        "Measures answers at every keep rate and writes the calibration of a speculator, by which the speculator "
        "chooses keep rates for a quality.",
        argc, argv, NULL);
    struct run run = {.pair = NULL};
    char *path = NULL;
    enum status status = check_flags(&run);
    if (status == STATUS_OK) status = tokenizer_open(o.main, &run.tokenizer);
    if (status == STATUS_OK) status = output_check(&path);
    if (status == STATUS_OK)
        status = calibrate_rows_read(o.prompts, o.main, run.tokenizer, (int)o.pinned_turn_tokens, &run.rows);
    if (status == STATUS_OK) status = pair_open(&run);
    if (status == STATUS_OK) status = measure(&run);
    if (status == STATUS_OK) status = fit_and_write(&run, path);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    run_fini(&run);
    free(path);
    options_free(options);
    return code;
}
