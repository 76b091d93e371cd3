// SPDX-License-Identifier: Apache-2.0
// Compares Forepack with the results that tests/transformers/generate.py wrote:
//
//     against_transformers DIR     DIR/checkpoints/*, DIR/tokenizers/*
//
// A checkpoint is computed in f32: the prompt in one pass, every further token with the KV cache. It must agree with
// transformers at every position that the context allows: log-probabilities within BOUND, and the same most likely
// token. Otherwise the checkpoint must be refused with a sentence that names one of the keys in its case.json. A
// tokenizer must produce the same tokens and the same text.
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/text/json_file.h"
#include "lib/text/tokenizer.h"
#include "tests/forward.h"
#include "tests/suite.h"

// float32 itself is off by 7e-5 on logits of this size, see check_golden.
#define BOUND 1e-3

enum { MAX_TOKENS = 256 };

struct tally {
    int computed, refused, peer_refused, wrong;
    double largest; // largest difference of a log-probability
};

// ---- checkpoints ----

struct expected {
    int n, n_prompt, position, vocab;
    int32_t token[MAX_TOKENS];
    float *logprob; // [n][vocab]
};

static bool expected_read(const char *dir, const json_t *described, struct expected *e)
{
    const json_t *tokens = json_object_get(described, "tokens");
    e->n = (int)json_array_size(tokens);
    e->n_prompt = (int)json_integer_value(json_object_get(described, "prompt"));
    e->position = (int)json_integer_value(json_object_get(described, "position"));
    if (e->n < 1 || e->n > MAX_TOKENS) return false;
    for (int i = 0; i < e->n; i++)
        e->token[i] = (int32_t)json_integer_value(json_array_get(tokens, (size_t)i));
    size_t count = (size_t)e->n * (size_t)e->vocab;
    e->logprob = mem_alloc_array(count, sizeof *e->logprob);
    char *path = mem_format("%s/logprobs.f32", dir);
    FILE *file = fopen(path, "rb");
    bool whole = file && fread(e->logprob, sizeof *e->logprob, count, file) == count && fgetc(file) == EOF;
    if (file) fclose(file);
    free(path);
    return whole;
}

static double log_sum(const float *logits, int n)
{
    double most = logits[forward_argmax(logits, n)], sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return most + log(sum);
}

// Returns the largest difference of a row, or INFINITY if the most likely tokens differ and are not equally likely.
static double row_difference(const float *logits, const float *expected, int n)
{
    double worst = 0, sum = log_sum(logits, n);
    for (int i = 0; i < n; i++) {
        double difference = fabs(logits[i] - sum - (double)expected[i]);
        if (!(difference <= worst)) worst = difference; // NaN too
    }
    int ours = forward_argmax(logits, n), theirs = forward_argmax(expected, n);
    return expected[theirs] - expected[ours] > 2 * BOUND ? INFINITY : worst;
}

// Runs tokens [from, to) after the earlier tokens. Returns the largest difference of their rows.
static double run_rows(struct ranks *ranks, const struct expected *e, int from, int to)
{
    static struct forward f;
    forward_start(&f, 1);
    int32_t position[MAX_TOKENS];
    const int32_t rope_length = e->position + e->n_prompt;
    for (int i = from; i < to; i++)
        position[i - from] = e->position + i;
    forward_add(&f, 0, from, e->token + from, position, to - from, LOGITS_ALL);
    f.batch.rope_length = &rope_length;
    struct forward_result result;
    double worst = 0;
    if (ranks_try_forward(ranks, &f.batch, &result) != STATUS_OK) return INFINITY;
    for (int i = from; i < to; i++) {
        const int64_t row = (int64_t)i * e->vocab;
        double d = row_difference(result.logits + (int64_t)(i - from) * e->vocab, e->logprob + row, e->vocab);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static double compare_model(struct ranks *ranks, const struct expected *e)
{
    const int context = model_get_config(ranks->model[0])->max_context, n = e->n < context ? e->n : context;
    const int n_prompt = e->n_prompt < n ? e->n_prompt : n;
    double worst = run_rows(ranks, e, 0, n_prompt);
    for (int i = n_prompt; i < n; i++) {
        double d = run_rows(ranks, e, i, i + 1);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

// Returns true if the sentence of the refusal names one of the keys.
static bool names_a_key(const json_t *keys)
{
    for (size_t i = 0; i < json_array_size(keys); i++)
        if (strstr(status_message(), json_string_value(json_array_get(keys, i)))) return true;
    return false;
}

static void report(struct tally *tally, const char *name, const char *what)
{
    tally->wrong++;
    printf("WRONG %s: %s\n", name, what);
}

static void check_refusal(struct tally *tally, const char *name, const json_t *described)
{
    if (names_a_key(json_object_get(described, "refused")))
        tally->refused++;
    else if (json_object_get(described, "peer_error"))
        tally->peer_refused++;
    else
        report(tally, name, status_message());
}

static void check_computed(struct tally *tally, const char *dir, const char *name, const json_t *described,
                           struct ranks *ranks)
{
    struct expected e = {.vocab = model_get_config(ranks->model[0])->vocab_size};
    if (json_array_size(json_object_get(described, "refused"))) {
        report(tally, name, "was not refused");
    } else if (json_object_get(described, "peer_error")) {
        tally->peer_refused++;
    } else if (!expected_read(dir, described, &e)) {
        report(tally, name, "case.json or logprobs.f32 is broken");
    } else {
        double worst = compare_model(ranks, &e);
        char text[64];
        snprintf(text, sizeof text, "differs by %g", worst);
        tally->computed++;
        if (worst > tally->largest) tally->largest = worst;
        if (!(worst <= BOUND)) report(tally, name, text);
    }
    free(e.logprob);
}

static void check_checkpoint(struct tally *tally, const char *dir, const char *name, const json_t *described)
{
    const struct model_options options = {.dir = dir,
                                          .backend = "cpu",
                                          .dtype = "f32",
                                          .threads = 1,
                                          .max_rows = MAX_TOKENS,
                                          .max_seqs = 1,
                                          .max_logit_rows = MAX_TOKENS,
                                          .n_kv_blocks = FORWARD_MAX_BLOCKS};
    struct ranks ranks;
    if (ranks_try_open(&ranks, &options, 1) != STATUS_OK) {
        check_refusal(tally, name, described);
        return;
    }
    check_computed(tally, dir, name, described, &ranks);
    ranks_close(&ranks);
}

// ---- tokenizers ----

// Returns true if `ids` equal the ids of a list. Frees them.
static bool ids_equal(int32_t *ids, int n, const json_t *list)
{
    bool equal = (size_t)n == json_array_size(list);
    for (int i = 0; i < n && equal; i++)
        equal = ids[i] == json_integer_value(json_array_get(list, (size_t)i));
    free(ids);
    return equal;
}

static bool encodes_as(const struct tokenizer *t, const json_t *row, unsigned flags, const char *key)
{
    const json_t *text = json_object_get(row, "text");
    int32_t *ids;
    int n;
    return tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ids, &n) == STATUS_OK &&
           ids_equal(ids, n, json_object_get(row, key));
}

static bool decodes_as(const struct tokenizer *t, const json_t *row, unsigned flags, const char *key)
{
    const json_t *list = json_object_get(row, "ids"), *expected = json_object_get(row, key);
    if (!expected) return true;
    const int n = (int)json_array_size(list);
    int32_t *ids = mem_alloc_array((size_t)n + 1, sizeof *ids);
    char *text = NULL;
    size_t size;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    bool equal = tokenizer_decode(t, ids, n, flags, &text, &size) == STATUS_OK &&
                 size == json_string_length(expected) && memcmp(text, json_string_value(expected), size) == 0;
    free(ids);
    free(text);
    return equal;
}

// Returns the key of the first result that differs for a text, or NULL.
static const char *text_compare(const struct tokenizer *t, const json_t *row)
{
    if (!encodes_as(t, row, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, "ids")) return "ids";
    if (!encodes_as(t, row, TOKENIZER_PARSE_SPECIAL, "bare")) return "bare";
    if (!decodes_as(t, row, 0, "decoded")) return "decoded";
    return decodes_as(t, row, TOKENIZER_SKIP_SPECIAL, "skipped") ? NULL : "skipped";
}

static void compare_texts(struct tally *tally, const char *name, const json_t *described, const struct tokenizer *t)
{
    const json_t *rows = json_object_get(described, "texts");
    tally->computed++;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *key = text_compare(t, row);
        if (!key) continue;
        char *what = mem_format("%s of \"%s\" differ", key, json_string_value(json_object_get(row, "text")));
        report(tally, name, what);
        free(what);
        return;
    }
}

static void check_tokenizer(struct tally *tally, const char *dir, const char *name, const json_t *described)
{
    struct tokenizer *t = NULL;
    if (tokenizer_open(dir, &t) != STATUS_OK)
        check_refusal(tally, name, described);
    else if (json_array_size(json_object_get(described, "refused")))
        report(tally, name, "was not refused");
    else if (json_object_get(described, "peer_error"))
        tally->peer_refused++;
    else
        compare_texts(tally, name, described, t);
    tokenizer_free(t);
}

// ---- folders ----

typedef void check_fn(struct tally *tally, const char *dir, const char *name, const json_t *described);

static const char *root; // DIR

static int is_case(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

// Calls `check` for every folder of DIR/KIND, in the order of names. Returns true if all agree; an empty folder counts
// as a failure.
static bool check_all(const char *kind, check_fn *check)
{
    struct tally tally = {0};
    char *folder = mem_format("%s/%s", root, kind);
    struct dirent **entries;
    int n = scandir(folder, &entries, is_case, alphasort);
    for (int i = 0; i < n; i++) {
        json_t *described = NULL;
        char *dir = mem_format("%s/%s", folder, entries[i]->d_name), *path = mem_format("%s/case.json", dir);
        if (json_file_read(path, (size_t)16 << 20, &described) == STATUS_OK)
            check(&tally, dir, entries[i]->d_name, described);
        else
            report(&tally, entries[i]->d_name, status_message());
        json_decref(described);
        free(dir);
        free(path);
        free(entries[i]);
    }
    if (n > 0) free(entries);
    free(folder);
    printf("%s: %d computed as transformers does (largest difference %.1e), %d refused by their key, %d not read by "
           "transformers, %d wrong\n",
           kind, tally.computed, tally.largest, tally.refused, tally.peer_refused, tally.wrong);
    fflush(stdout);
    return tally.computed > 0 && !tally.wrong;
}

START_TEST(checkpoints_are_computed_as_transformers_does_or_refused)
{
    ck_assert(check_all("checkpoints", check_checkpoint));
}
END_TEST

START_TEST(tokenizers_give_the_tokens_and_texts_of_transformers_or_are_refused)
{
    ck_assert(check_all("tokenizers", check_tokenizer));
}
END_TEST

SUITE("against transformers")
{
    if (argc != 2) {
        fprintf(stderr, "Usage: %s DIR\n", argv[0]);
        exit(2);
    }
    root = argv[1];
    log_setup("against_transformers", LOG_WARN);
    TIMEOUT(1200);
    TEST(checkpoints_are_computed_as_transformers_does_or_refused);
    TEST(tokenizers_give_the_tokens_and_texts_of_transformers_or_are_refused);
}
