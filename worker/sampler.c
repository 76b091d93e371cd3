// SPDX-License-Identifier: Apache-2.0
// Works on a copy of the logits. A stage that removes tokens sets their weights to zero. The last stage
// walks the weights in order of id. So the sampled token does not depend on the order in which a stage removes tokens.
//
// Cost: a few passes over the vocabulary. Top-k and top-p select in expected linear time and never sort.
#include "worker/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

#define TEMPERATURE_GREEDY 1e-5
#define LOGPROB_MIN        -9999.0f

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    int vocab_size;
    float *logits;                // [V] the working copy: finite or -inf
    float *weights;               // [V] exp((logit - max) / temperature), zero once removed
    struct candidate *candidates; // [V]
    int32_t *counts;              // [V] all zero between calls
    uint8_t *seen;                // [V] all zero between calls
};

struct sampler *sampler_create(int vocab_size)
{
    size_t n = (size_t)vocab_size;
    struct sampler *s = mem_alloc(sizeof *s);
    s->vocab_size = vocab_size;
    s->logits = mem_alloc_array(n, sizeof *s->logits);
    s->weights = mem_alloc_array(n, sizeof *s->weights);
    s->candidates = mem_alloc_array(n, sizeof *s->candidates);
    s->counts = mem_alloc_array(n, sizeof *s->counts);
    s->seen = mem_alloc_array(n, sizeof *s->seen);
    return s;
}

void sampler_free(struct sampler *s)
{
    free(s->logits);
    free(s->weights);
    free(s->candidates);
    free(s->counts);
    free(s->seen);
    free(s);
}

// ---- numbers ----

static float logit_clamp(float x)
{
    if (!(x >= -FLT_MAX)) return -INFINITY; // also true for NaN
    return x > FLT_MAX ? FLT_MAX : x;
}

// Returns exp(x) for x <= 0 with a relative error under 2e-7, and 0 below -87. It is plain arithmetic, so that
// compilers vectorise the loop around it and every machine computes the same bits.
static inline float exp_negative(float x)
{
    float y = x > -87.0f ? x : -87.0f;
    float shifted = y * 1.44269504f + 12582912.0f; // adding 1.5 * 2^23 rounds to an integer
    float n = shifted - 12582912.0f;
    float r = (y - n * 0.693359375f) + n * 2.12194440e-4f; // ln 2 in two parts
    float p = 1.9875691500e-4f;                            // Cephes expf
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union {
        int32_t bits;
        float value;
    } power = {.bits = ((int32_t)n + 127) * (1 << 23)};
    return x > -87.0f ? p * power.value : 0.0f;
}

// Sets weights[i] to exp((logits[i] - max) * inverse_temperature). The differences are <= 0 or -inf, never NaN.
static void weights_compute(float *restrict weights, const float *restrict logits, int n, float max,
                            float inverse_temperature)
{
    for (int i = 0; i < n; i++)
        weights[i] = exp_negative((logits[i] - max) * inverse_temperature);
}

static double weights_sum(const float *x, int n)
{
    double total = 0;
    for (int i = 0; i < n; i++)
        total += (double)x[i];
    return total;
}

static int likeliest(const float *logits, int n)
{
    int at = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[at]) at = i;
    return at;
}

void sampler_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

double sampler_uniform(uint64_t seed, uint64_t index)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0}, out[4];
    sampler_philox(counter, key, out);
    uint64_t bits = (uint64_t)out[1] << 32 | out[0];
    return (double)(bits >> 11) * 0x1p-53;
}

// ---- stages ----

static float log_sum_exp(struct sampler *s)
{
    float max = s->logits[likeliest(s->logits, s->vocab_size)];
    weights_compute(s->weights, s->logits, s->vocab_size, max, 1);
    return max + (float)log(weights_sum(s->weights, s->vocab_size));
}

static float logprob(float logit, float log_sum)
{
    float value = logit - log_sum;
    return value > LOGPROB_MIN ? value : LOGPROB_MIN;
}

// Lists the n likeliest tokens by insertion. This is fast, because most tokens need only one comparison, with the last
// token of the list.
static void logprobs_list(const struct sampler *s, int n, float log_sum, struct sampled_token *token)
{
    float logit[LOGPROBS_MAX];
    if (n > s->vocab_size) n = s->vocab_size;
    int have = 0;
    for (int id = 0; id < s->vocab_size && n > 0; id++) {
        float x = s->logits[id];
        if (have == n && !(x > logit[n - 1])) continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && x > logit[at - 1]; at--) {
            logit[at] = logit[at - 1];
            token->top_id[at] = token->top_id[at - 1];
        }
        logit[at] = x;
        token->top_id[at] = id;
    }
    token->n_top = n;
    for (int i = 0; i < n; i++)
        token->top_logprob[i] = logprob(logit[i], log_sum);
}

static void logits_read(struct sampler *s, const float *logits)
{
    for (int i = 0; i < s->vocab_size; i++)
        s->logits[i] = logit_clamp(logits[i]);
}

static int rank_of(const struct sampler *s, int32_t token)
{
    int ahead = 0;
    float x = s->logits[token];
    for (int id = 0; id < s->vocab_size; id++)
        ahead += id < token ? s->logits[id] >= x : s->logits[id] > x;
    return ahead + 1;
}

static void exclude_tokens(struct sampler *s, const uint32_t *allowed)
{
    for (int i = 0; i < s->vocab_size; i++)
        if (!(allowed[i / 32] >> (i % 32) & 1)) s->logits[i] = -INFINITY;
}

static void add_bias(struct sampler *s, const struct logit_bias *bias)
{
    for (int i = 0; i < bias->n; i++) {
        float *logit = &s->logits[bias->ids[i]];
        *logit = logit_clamp(*logit + bias->numbers[i]);
    }
}

static void penalise_repetition(struct sampler *s, const int32_t *ids, int n, double penalty)
{
    for (int i = 0; i < n; i++) {
        if (s->seen[ids[i]]) continue;
        s->seen[ids[i]] = 1;
        double x = (double)s->logits[ids[i]];
        s->logits[ids[i]] = logit_clamp((float)(x > 0 ? x / penalty : x * penalty));
    }
}

static void penalise_logits(struct sampler *s, const struct sampler_context *c)
{
    const struct sampling *p = c->sampling;
    if (p->repetition_penalty != 1) {
        penalise_repetition(s, c->prompt, c->n_prompt, p->repetition_penalty);
        penalise_repetition(s, c->output, c->n_output, p->repetition_penalty);
        for (int i = 0; i < c->n_prompt; i++)
            s->seen[c->prompt[i]] = 0;
        for (int i = 0; i < c->n_output; i++)
            s->seen[c->output[i]] = 0;
    }
    if (p->frequency_penalty == 0 && p->presence_penalty == 0) return;
    for (int i = 0; i < c->n_output; i++)
        s->counts[c->output[i]]++;
    for (int i = 0; i < c->n_output; i++) {
        int32_t id = c->output[i];
        if (!s->counts[id]) continue; // was penalised at its first occurrence
        s->logits[id] =
            logit_clamp((float)((double)s->logits[id] - p->frequency_penalty * s->counts[id] - p->presence_penalty));
        s->counts[id] = 0;
    }
}

static bool masks_end_tokens(const struct sampler_context *c)
{
    return c->n_output < c->sampling->min_tokens;
}

static void mask_end_tokens(struct sampler *s, const struct sampler_context *c)
{
    if (!masks_end_tokens(c)) return;
    for (int i = 0; i < c->n_eos && !c->sampling->ignore_eos; i++)
        s->logits[c->eos[i]] = -INFINITY;
    for (int i = 0; i < c->sampling->n_stop_ids; i++)
        s->logits[c->sampling->stop_ids[i]] = -INFINITY;
}

static void keep_min_p(struct sampler *s, double min_p)
{
    float least = (float)min_p; // the best token has weight 1
    for (int i = 0; i < s->vocab_size; i++)
        s->weights[i] = s->weights[i] >= least ? s->weights[i] : 0;
}

static bool candidate_is_better(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Partitions c[lo, hi) around its middle candidate, better candidates first. Returns the new place of that candidate.
static int candidates_partition(struct candidate *c, int lo, int hi)
{
    struct candidate pivot = c[lo + (hi - lo) / 2];
    c[lo + (hi - lo) / 2] = c[hi - 1];
    int at = lo;
    for (int i = lo; i < hi - 1; i++) {
        struct candidate here = c[i];
        if (!candidate_is_better(here, pivot)) continue;
        c[i] = c[at];
        c[at++] = here;
    }
    c[hi - 1] = c[at];
    c[at] = pivot;
    return at;
}

// Lists the remaining tokens with at least this logit. Returns their number and sets their total weight.
static int candidates_list(struct sampler *s, float least, double *weight_p)
{
    int n = 0;
    double weight = 0;
    for (int i = 0; i < s->vocab_size; i++) {
        if (s->weights[i] <= 0 || s->logits[i] < least) continue;
        s->candidates[n++] = (struct candidate){s->logits[i], i};
        weight += (double)s->weights[i];
    }
    *weight_p = weight;
    return n;
}

// Keeps the best tokens: the fewest whose total weight is at least `mass`, but at most `count` tokens. These tokens are
// called the run. Real distributions are steep, so the run nearly always has only logits of at least `near`. So it is
// first searched among tokens with such logits. During the quickselect, c[0, lo) belongs to the run and weighs
// `weight`, and c[hi, n) does not belong to it.
static void keep_best(struct sampler *s, int count, double mass, float near)
{
    struct candidate *c = s->candidates;
    double weight;
    int n = candidates_list(s, near, &weight);
    if (n < count && weight < mass) {
        near = -INFINITY;
        n = candidates_list(s, near, &weight);
    }
    int lo = 0, hi = n;
    weight = 0;
    while (lo < hi) {
        int pivot = candidates_partition(c, lo, hi);
        double with_better = weight;
        for (int i = lo; i < pivot; i++)
            with_better += (double)s->weights[c[i].id];
        if (pivot >= count || with_better >= mass) {
            hi = pivot;
        } else {
            weight = with_better + (double)s->weights[c[pivot].id];
            lo = pivot + 1;
        }
    }
    for (int i = 0; i < s->vocab_size; i++)
        s->weights[i] = s->logits[i] >= near ? s->weights[i] : 0;
    for (int i = lo; i < n; i++)
        s->weights[c[i].id] = 0;
}

static int32_t sample_weights(const struct sampler *s, double uniform)
{
    double target = uniform * weights_sum(s->weights, s->vocab_size), reached = 0;
    int32_t last = 0;
    for (int i = 0; i < s->vocab_size; i++) {
        if (s->weights[i] <= 0) continue;
        reached += (double)s->weights[i];
        last = i;
        if (reached > target) break;
    }
    return last; // rounding may leave `reached` slightly below the target at the end
}

// ---- public ----

enum status sampler_sample_token(struct sampler *s, const float *logits, const struct sampler_context *context,
                                 struct sampled_token *token_p)
{
    const struct sampling *p = context->sampling;
    logits_read(s, logits);
    float log_sum = 0;
    if (p->logprobs >= 0) log_sum = log_sum_exp(s);
    token_p->n_top = token_p->rank = 0;
    if (p->logprobs > 0) logprobs_list(s, p->logprobs, log_sum, token_p);

    if (context->allowed) exclude_tokens(s, context->allowed);
    add_bias(s, &p->logit_bias);
    penalise_logits(s, context);
    mask_end_tokens(s, context);
    int32_t token = likeliest(s->logits, s->vocab_size);
    float max = s->logits[token];
    if (max == -INFINITY) return sampler_fail_no_token();
    if (p->temperature >= TEMPERATURE_GREEDY) {
        weights_compute(s->weights, s->logits, s->vocab_size, max, (float)(1 / p->temperature));
        if (p->min_p > 0) keep_min_p(s, p->min_p);
        float near = max - (float)(7 * p->temperature); // logit of a thousandth of the best weight
        if (p->top_k > 0 && p->top_k < s->vocab_size) keep_best(s, p->top_k, INFINITY, near);
        if (p->top_p < 1) keep_best(s, s->vocab_size, p->top_p * weights_sum(s->weights, s->vocab_size), near);
        token = sample_weights(s, sampler_uniform(p->seed, (uint64_t)context->n_output));
    }
    token_p->token = token;
    token_p->logprob = p->logprobs >= 0 ? logprob(logit_clamp(logits[token]), log_sum) : 0;
    return STATUS_OK;
}

void sampler_rate_token(struct sampler *s, const float *logits, int32_t token, int n, struct sampled_token *token_p)
{
    logits_read(s, logits);
    float log_sum = log_sum_exp(s);
    token_p->n_top = 0;
    if (n > 0) logprobs_list(s, n, log_sum, token_p);
    token_p->token = token;
    token_p->logprob = logprob(s->logits[token], log_sum);
    token_p->rank = rank_of(s, token);
}

bool sampler_backend_can_sample(const struct sampler_context *context)
{
    return !sampling_needs_host(context->sampling, context->n_output);
}

struct row_sampling sampler_row_sampling(const struct sampler_context *context)
{
    const struct sampling *p = context->sampling;
    if (p->temperature < TEMPERATURE_GREEDY) return (struct row_sampling){.top_p = 1};
    return (struct row_sampling){.uniform = sampler_uniform(p->seed, (uint64_t)context->n_output),
                                 .top_p = p->top_p,
                                 .inverse_temperature = (float)(1 / p->temperature),
                                 .min_p = (float)p->min_p,
                                 .top_k = p->top_k};
}

enum status sampler_fail_no_token(void)
{
    return status_fail(STATUS_INTERNAL, "no token can be sampled: all logits are NaN, -inf or masked");
}

bool sampler_stops(const struct sampling *sampling, const int32_t *eos, int n_eos, int32_t token)
{
    for (int i = 0; i < n_eos && !sampling->ignore_eos; i++)
        if (eos[i] == token) return true;
    for (int i = 0; i < sampling->n_stop_ids; i++)
        if (sampling->stop_ids[i] == token) return true;
    return false;
}
