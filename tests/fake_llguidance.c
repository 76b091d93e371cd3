// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_llguidance.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/grammar/llguidance.h"

struct llg_tokenizer {
    uint32_t vocab_size;
};

struct llg_matcher {
    const char *error;
    uint32_t steps, step; // for a grammar "steps N"; 0: another grammar
    bool hangs, is_dead_end;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool hold;
static int begun, awaited, compiled, matchers;

void fake_llguidance_hold(bool value)
{
    pthread_mutex_lock(&mutex);
    hold = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void fake_llguidance_await_compile(void)
{
    pthread_mutex_lock(&mutex);
    while (begun == awaited)
        pthread_cond_wait(&changed, &mutex);
    awaited = begun;
    pthread_mutex_unlock(&mutex);
}

static int read_count(const int *count)
{
    pthread_mutex_lock(&mutex);
    int n = *count;
    pthread_mutex_unlock(&mutex);
    return n;
}

int fake_llguidance_compiled(void)
{
    return read_count(&compiled);
}

int fake_llguidance_matchers(void)
{
    return read_count(&matchers);
}

// --- llguidance

static struct llg_matcher *matcher_new(struct llg_matcher from)
{
    struct llg_matcher *matcher = malloc(sizeof *matcher);
    *matcher = from;
    pthread_mutex_lock(&mutex);
    matchers++;
    pthread_mutex_unlock(&mutex);
    return matcher;
}

#define DECLARE(result, name, parameters) result name parameters;
LLG_FUNCTIONS(DECLARE)
#undef DECLARE

const char *llg_get_version(void)
{
    return "fake";
}

struct llg_tokenizer *llg_new_tokenizer_v2(const struct llg_tokenizer_init *init, char *error, size_t error_bytes)
{
    (void)error;
    (void)error_bytes;
    struct llg_tokenizer *tokenizer = malloc(sizeof *tokenizer);
    tokenizer->vocab_size = init->vocab_size;
    return tokenizer;
}

void llg_free_tokenizer(struct llg_tokenizer *tokenizer)
{
    free(tokenizer);
}

void llg_constraint_init_set_defaults(struct llg_init *init, const struct llg_tokenizer *tokenizer)
{
    *init = (struct llg_init){.tokenizer = tokenizer};
}

struct llg_matcher *llg_new_matcher(const struct llg_init *init, const char *kind, const char *text)
{
    (void)init;
    (void)kind;
    pthread_mutex_lock(&mutex);
    begun++;
    pthread_cond_broadcast(&changed);
    while (hold)
        pthread_cond_wait(&changed, &mutex);
    compiled++;
    pthread_mutex_unlock(&mutex);
    struct llg_matcher matcher = {.error = strcmp(text, "bad") ? NULL : "the grammar is bad",
                                  .hangs = strcmp(text, "hang") == 0,
                                  .is_dead_end = strcmp(text, "dead end") == 0};
    if (strncmp(text, "steps ", 6) == 0) matcher.steps = (uint32_t)atoi(text + 6);
    return matcher_new(matcher);
}

struct llg_matcher *llg_clone_matcher(const struct llg_matcher *matcher)
{
    return matcher_new(*matcher);
}

void llg_free_matcher(struct llg_matcher *matcher)
{
    free(matcher);
    pthread_mutex_lock(&mutex);
    matchers--;
    pthread_mutex_unlock(&mutex);
}

const char *llg_matcher_get_error(struct llg_matcher *matcher)
{
    return matcher->error;
}

size_t llg_matcher_get_mask_byte_size(const struct llg_matcher *matcher)
{
    (void)matcher;
    return 0;
}

static bool matcher_allows(const struct llg_matcher *matcher, uint32_t token)
{
    return !matcher->steps || (token + matcher->step) % 5 != 0;
}

int32_t llg_matcher_compute_mask_into(struct llg_matcher *matcher, uint32_t *mask, size_t bytes)
{
    while (matcher->hangs)
        pause();
    if (matcher->is_dead_end && matcher->step) {
        matcher->error = "NoExtensionBias";
        return -1;
    }
    memset(mask, 0xff, bytes);
    for (uint32_t token = 0; token < 8 * bytes; token++)
        if (!matcher_allows(matcher, token)) mask[token / 32] &= ~(UINT32_C(1) << token % 32);
    return 0;
}

int32_t llg_matcher_consume_tokens(struct llg_matcher *matcher, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++, matcher->step++) {
        if (matcher_allows(matcher, tokens[i])) continue;
        matcher->error = "the grammar does not allow the token";
        return -1;
    }
    return 0;
}

bool llg_matcher_is_stopped(const struct llg_matcher *matcher)
{
    return matcher->steps && matcher->step >= matcher->steps;
}
