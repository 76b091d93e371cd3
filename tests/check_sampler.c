// SPDX-License-Identifier: Apache-2.0
// The sampler against a slow implementation that sorts all tokens in double precision, against the expected
// distribution, and with NaN and infinite logits.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/random.h"
#include "tests/suite.h"
#include "worker/sampler.h"

enum { V_MAX = 400, HISTORY_MAX = 60 };

static struct random_source source;

static uint64_t random_bits(void)
{
    return random_next(&source);
}

static int below(int n)
{
    return (int)(random_bits() % (uint64_t)n);
}

static double real(double from, double to)
{
    return from + (to - from) * (double)(random_bits() >> 11) * 0x1p-53;
}

// ---- the slow implementation ----

static const double *sort_key;

static int by_key(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    if (sort_key[i] != sort_key[j]) return sort_key[i] > sort_key[j] ? -1 : 1;
    return i - j;
}

static int occurrences(const int32_t *ids, int n, int id)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += ids[i] == id;
    return count;
}

// Returns the token, or -1 if it depends on a rounding error.
static int slow_sample(int v, const float *logits, const struct sampler_context *c)
{
    static double x[V_MAX], w[V_MAX];
    static int order[V_MAX];
    const struct sampling *p = c->sampling;
    for (int i = 0; i < v; i++) {
        x[i] = isnan(logits[i]) ? -INFINITY : (double)logits[i];
        for (int k = 0; k < p->logit_bias.n; k++)
            if (p->logit_bias.ids[k] == i) x[i] = (double)((float)x[i] + p->logit_bias.numbers[k]);
        int in_output = occurrences(c->output, c->n_output, i);
        if (in_output + occurrences(c->prompt, c->n_prompt, i) > 0) {
            x[i] = (double)(float)(x[i] > 0 ? x[i] / p->repetition_penalty : x[i] * p->repetition_penalty);
        }
        if (in_output) x[i] = (double)(float)(x[i] - p->frequency_penalty * in_output - p->presence_penalty);
        bool ends = occurrences(p->stop_ids, p->n_stop_ids, i) > 0;
        if (!p->ignore_eos && occurrences(c->eos, c->n_eos, i)) ends = true;
        if (ends && c->n_output < p->min_tokens) x[i] = -INFINITY;
        order[i] = i;
    }
    sort_key = x;
    qsort(order, (size_t)v, sizeof *order, by_key);
    if (p->temperature == 0) return order[0];
    int kept = 0;
    double total = 0;
    for (int i = 0; i < v; i++) {
        w[order[i]] = exp((x[order[i]] - x[order[0]]) / p->temperature);
        if (p->min_p > 0 && fabs(w[order[i]] / p->min_p - 1) < 1e-4) return -1;
        if (w[order[i]] < p->min_p || (p->top_k && i >= p->top_k)) break;
        total += w[order[i]];
        kept++;
    }
    if (p->top_p < 1) {
        double mass = 0;
        for (int i = 0; i < kept; i++) {
            if (i > 0 && fabs(mass / total - p->top_p) < 1e-5) return -1;
            if (i > 0 && mass >= p->top_p * total) {
                kept = i;
                break;
            }
            mass += w[order[i]];
        }
    }
    bool in[V_MAX] = {false};
    total = 0;
    for (int i = 0; i < kept; i++) {
        in[order[i]] = true;
        total += w[order[i]];
    }
    double target = sampler_uniform(p->seed, (uint64_t)c->n_output) * total, reached = 0;
    for (int i = 0; i < v; i++) {
        if (!in[i]) continue;
        reached += w[i];
        if (fabs(reached - target) < 1e-5 * total) return -1;
        if (reached > target) return i;
    }
    return -1;
}

// ---- against the slow implementation ----

static void random_ids(int32_t *ids, int n, int v)
{
    for (int i = 0; i < n; i++)
        ids[i] = below(v);
}

static void random_sampling(struct sampling *p, int v)
{
    sampling_defaults(p);
    p->seed = random_bits();
    p->max_tokens = HISTORY_MAX + 1;
    if (below(5)) p->temperature = real(0.1, 3);
    if (below(2)) p->top_k = 1 + below(v + 10);
    if (below(2)) p->top_p = real(0.01, 1);
    if (below(3) == 0) p->min_p = real(0, 1);
    if (below(3) == 0) p->repetition_penalty = real(0.5, 2);
    if (below(3) == 0) p->frequency_penalty = real(-2, 2);
    if (below(3) == 0) p->presence_penalty = real(-2, 2);
    if (below(2)) p->min_tokens = below(HISTORY_MAX);
    p->n_stop_ids = below(4);
    random_ids(p->stop_ids, p->n_stop_ids, v);
    for (int n = below(3) ? 0 : below(8); n > 0; n--)
        (void)!logit_bias_add(&p->logit_bias, below(v), real(-20, 20)); // a token drawn twice keeps its first number
    p->ignore_eos = below(4) == 0;
}

START_TEST(samples_the_token_that_a_full_sort_samples)
{
    source.state = 7;
    int undecided = 0, rounds = 6000;
    struct sampler *s = NULL;
    int v = 0;
    for (int round = 0; round < rounds; round++) {
        if (round % 50 == 0) {
            if (s) sampler_free(s);
            v = 8 + below(V_MAX - 8);
            s = sampler_create(v);
        }
        float logits[V_MAX];
        bool coarse = below(3) == 0; // many equal logits
        for (int i = 0; i < v; i++) {
            logits[i] = coarse ? (float)below(5) : (float)real(-8, 8);
            if (below(50) == 0) logits[i] = below(2) ? -INFINITY : NAN;
        }
        int32_t prompt[HISTORY_MAX], output[HISTORY_MAX], eos[3];
        random_ids(prompt, HISTORY_MAX, v);
        random_ids(output, HISTORY_MAX, v);
        random_ids(eos, 3, v);
        struct sampling sampling;
        random_sampling(&sampling, v);
        struct sampler_context context = {&sampling,          eos,    below(4),           prompt,
                                          below(HISTORY_MAX), output, below(HISTORY_MAX), NULL};
        int expected = slow_sample(v, logits, &context);
        struct sampled_token token;
        ck_assert_int_eq(sampler_sample_token(s, logits, &context, &token), STATUS_OK);
        if (expected < 0) {
            undecided++;
        } else {
            ck_assert_msg(token.token == expected, "round %d: token %d, expected %d", round, token.token, expected);
        }
        logit_bias_free(&sampling.logit_bias);
    }
    sampler_free(s);
    ck_assert_int_lt(undecided, rounds / 50);
}
END_TEST

// ---- distribution ----

static void sample_many(const float *logits, int v, struct sampling *p, int n, int *counts)
{
    struct sampler *s = sampler_create(v);
    int32_t *zeros = calloc((size_t)n, sizeof *zeros);
    memset(counts, 0, (size_t)v * sizeof *counts);
    for (int i = 0; i < n; i++) {
        struct sampler_context context = {.sampling = p, .output = zeros, .n_output = i};
        struct sampled_token token;
        ck_assert_int_eq(sampler_sample_token(s, logits, &context, &token), STATUS_OK);
        counts[token.token]++;
    }
    free(zeros);
    sampler_free(s);
}

START_TEST(sampled_tokens_follow_the_softmax)
{
    enum { N = 100000, V = 8 };
    const float logits[V] = {0, 1, 2, 0.5f, -1, 1.5f, -3, 2.5f};
    struct sampling p;
    sampling_defaults(&p);
    p.temperature = 1.3;
    p.seed = 20240229;
    int counts[V];
    sample_many(logits, V, &p, N, counts);
    double total = 0, chi2 = 0;
    for (int i = 0; i < V; i++)
        total += exp((double)logits[i] / p.temperature);
    for (int i = 0; i < V; i++) {
        double expected = N * exp((double)logits[i] / p.temperature) / total;
        chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    ck_assert_double_lt(chi2, 24.3); // 7 degrees of freedom: exceeded once in a thousand seeds
}
END_TEST

START_TEST(filters_keep_exactly_their_tokens)
{
    enum { N = 4000, V = 6 };
    // Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 and 0, in shuffled order.
    const double probability[V] = {0.1, 0.4, 0.05, 0.3, 0, 0.15};
    float logits[V];
    for (int i = 0; i < V; i++)
        logits[i] = (float)log(probability[i]);
    static const struct {
        int top_k;
        double top_p, min_p;
        const char *kept; // one character per token
    } cases[] = {
        {0, 1, 0, "++++-+"},    {1, 1, 0, "-+----"},     {2, 1, 0, "-+-+--"},    {4, 1, 0, "++-+-+"},
        {0, 0.39, 0, "-+----"}, {0, 0.41, 0, "-+-+--"},  {0, 0.71, 0, "-+-+-+"}, {0, 0.96, 0, "++++-+"},
        {0, 1, 0.5, "-+-+--"},  {0, 1, 0.3, "-+-+-+"},   {0, 1, 1, "-+----"},    {3, 0.8, 0, "-+-+--"}, // 0.7/0.85
        {3, 0.84, 0, "-+-+-+"}, {4, 0.9, 0.3, "-+-+-+"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct sampling p;
        sampling_defaults(&p);
        p.temperature = 1;
        p.top_k = cases[c].top_k;
        p.top_p = cases[c].top_p;
        p.min_p = cases[c].min_p;
        p.seed = c;
        int counts[V];
        sample_many(logits, V, &p, N, counts);
        char kept[V + 1] = "";
        for (int i = 0; i < V; i++)
            kept[i] = counts[i] ? '+' : '-';
        ck_assert_msg(strcmp(kept, cases[c].kept) == 0, "case %zu: kept %s, expected %s", c, kept, cases[c].kept);
    }
}
END_TEST

START_TEST(equal_logits_go_to_the_lower_id)
{
    const float logits[5] = {1, 3, 3, 3, 0};
    struct sampling p;
    sampling_defaults(&p);
    int counts[5];
    sample_many(logits, 5, &p, 1, counts);
    ck_assert_int_eq(counts[1], 1);
    p.temperature = 1;
    p.top_k = 2;
    sample_many(logits, 5, &p, 500, counts);
    ck_assert_int_gt(counts[1], 0);
    ck_assert_int_gt(counts[2], 0);
    ck_assert_int_eq(counts[3], 0);
}
END_TEST

// ---- the generator ----

START_TEST(philox_matches_the_published_vectors)
{
    static const uint32_t vectors[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        sampler_philox(vectors[i], vectors[i] + 4, out);
        ck_assert_mem_eq(out, vectors[i] + 6, sizeof out);
    }
    ck_assert(sampler_uniform(1, 5) == sampler_uniform(1, 5));
    ck_assert(sampler_uniform(1, 5) != sampler_uniform(1, 6));
    ck_assert(sampler_uniform(1, 5) != sampler_uniform(2, 5));
    ck_assert(sampler_uniform(1, 5) != sampler_uniform((1ull << 32) + 1, 5));
}
END_TEST

// ---- log-probabilities ----

START_TEST(log_probabilities_are_of_the_raw_logits)
{
    enum { V = 50 };
    source.state = 3;
    float logits[V];
    for (int i = 0; i < V; i++)
        logits[i] = (float)real(-10, 10);
    logits[7] = logits[9] = 11; // a tie at the top
    logits[20] = -INFINITY;
    struct sampling p;
    sampling_defaults(&p);
    p.logprobs = 20;
    p.frequency_penalty = 2;
    int32_t output[9] = {7, 7, 7, 9, 9, 9, 9, 9, 9};
    struct sampler_context context = {.sampling = &p, .output = output, .n_output = 9};
    struct sampler *s = sampler_create(V);
    struct sampled_token token;
    ck_assert_int_eq(sampler_sample_token(s, logits, &context, &token), STATUS_OK);
    double x[V], total = 0;
    int order[V];
    for (int i = 0; i < V; i++) {
        x[i] = (double)logits[i];
        total += exp(x[i]);
        order[i] = i;
    }
    sort_key = x;
    qsort(order, V, sizeof *order, by_key);
    ck_assert_int_eq(token.n_top, 20);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(token.top_id[i], order[i]);
        ck_assert_double_eq_tol((double)token.top_logprob[i], x[order[i]] - log(total), 1e-5);
    }
    ck_assert_int_ne(token.token, 7);
    ck_assert_double_eq_tol((double)token.logprob, x[token.token] - log(total), 1e-5);

    p.logprobs = 0;
    ck_assert_int_eq(sampler_sample_token(s, logits, &context, &token), STATUS_OK);
    ck_assert_int_eq(token.n_top, 0);
    ck_assert_double_eq_tol((double)token.logprob, x[token.token] - log(total), 1e-5);
    sampler_free(s);

    s = sampler_create(3); // the vocabulary is smaller than the number of alternatives
    p.logprobs = 20;
    const float few[3] = {0, -INFINITY, 0};
    context.n_output = 0;
    ck_assert_int_eq(sampler_sample_token(s, few, &context, &token), STATUS_OK);
    ck_assert_int_eq(token.n_top, 3);
    ck_assert_int_eq(token.top_id[2], 1);
    ck_assert(token.top_logprob[2] == -9999.0f);
    sampler_free(s);
}
END_TEST

// ---- broken logits ----

static enum status sample4(float a, float b, float c, float d, double temperature, int32_t *token_p)
{
    const float logits[4] = {a, b, c, d};
    struct sampling p;
    sampling_defaults(&p);
    p.temperature = temperature;
    p.top_p = 0.99;
    p.top_k = 3;
    p.logprobs = 2;
    struct sampler_context context = {.sampling = &p};
    struct sampler *s = sampler_create(4);
    struct sampled_token token = {.token = -1};
    enum status status = sampler_sample_token(s, logits, &context, &token);
    *token_p = token.token;
    sampler_free(s);
    return status;
}

START_TEST(nan_and_infinite_logits_are_never_sampled)
{
    int32_t token;
    for (int i = 0; i < 2; i++) {
        double temperature = i;
        ck_assert_int_eq(sample4(NAN, 1, NAN, NAN, temperature, &token), STATUS_OK);
        ck_assert_int_eq(token, 1);
        ck_assert_int_eq(sample4(0, 1, INFINITY, 3e38f, temperature, &token), STATUS_OK);
        ck_assert_int_eq(token, 2);
        ck_assert_int_eq(sample4(-INFINITY, -3e38f, NAN, -INFINITY, temperature, &token), STATUS_OK);
        ck_assert_int_eq(token, 1);
        ck_assert_int_eq(sample4(NAN, NAN, -INFINITY, NAN, temperature, &token), STATUS_INTERNAL);
    }
}
END_TEST

START_TEST(end_tokens_wait_for_min_tokens)
{
    const float logits[4] = {5, 4, 3, 2};
    const int32_t eos[1] = {0}, output[3] = {3, 3, 3};
    struct sampling p;
    sampling_defaults(&p);
    p.min_tokens = 2;
    p.n_stop_ids = 1;
    p.stop_ids[0] = 1;
    struct sampler *s = sampler_create(4);
    struct sampled_token token;
    struct sampler_context context = {.sampling = &p, .eos = eos, .n_eos = 1, .output = output, .n_output = 1};
    sampler_sample_token(s, logits, &context, &token);
    ck_assert_int_eq(token.token, 2);
    context.n_output = 2;
    sampler_sample_token(s, logits, &context, &token);
    ck_assert_int_eq(token.token, 0);
    ck_assert(sampler_stops(&p, eos, 1, 0));
    ck_assert(sampler_stops(&p, eos, 1, 1));
    ck_assert(!sampler_stops(&p, eos, 1, 2));
    p.ignore_eos = true; // then EOS is an ordinary token
    ck_assert(!sampler_stops(&p, eos, 1, 0));
    ck_assert(sampler_stops(&p, eos, 1, 1));
    context.n_output = 0;
    sampler_sample_token(s, logits, &context, &token);
    ck_assert_int_eq(token.token, 0);

    p.ignore_eos = false; // no token is left
    p.n_stop_ids = 3;
    p.stop_ids[1] = 2;
    p.stop_ids[2] = 3;
    ck_assert_int_eq(sampler_sample_token(s, logits, &context, &token), STATUS_INTERNAL);
    sampler_free(s);
}
END_TEST

SUITE("sampler")
{
    TIMEOUT(30);
    TEST(samples_the_token_that_a_full_sort_samples);
    TEST(sampled_tokens_follow_the_softmax);
    TEST(filters_keep_exactly_their_tokens);
    TEST(equal_logits_go_to_the_lower_id);
    TEST(philox_matches_the_published_vectors);
    TEST(log_probabilities_are_of_the_raw_logits);
    TEST(nan_and_infinite_logits_are_never_sampled);
    TEST(end_tokens_wait_for_min_tokens);
}
