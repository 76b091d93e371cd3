// SPDX-License-Identifier: Apache-2.0
// The forward pass of every family against slow_llama, on both backends and on 1, 2, 4 and 8 ranks; and the exactness
// of a row: packed, chunked and alone give the same bits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "tests/forward.h"
#include "tests/model_fixture.h"
#include "tests/slow_llama.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
static const char *const backends[] = {"reference", "cpu"};
static const int sizes[] = {1, 2, 4, 8}; // ranks; with 4 KV heads, 8 ranks hold each head twice
static struct forward f;

static uint64_t random_state = 7;

static int random_below(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

// ---- against the slow implementation --------------------------------------------------------------------------------

// A prompt with gaps between its positions, as after pruning.
struct prompt {
    int n;
    int32_t token[160], position[160];
    double *logits; // of slow_llama [n][vocab]
};

static void make_prompt(struct prompt *p, const struct tiny_model *spec, int n)
{
    p->n = n;
    for (int i = 0, at = random_below(4); i < n; i++, at += 1 + random_below(3)) {
        p->token[i] = random_below(spec->vocab_size);
        p->position[i] = at;
    }
}

struct variant {
    const char *name;
    struct tiny_model spec;
    const char *dtype; // dtype of the computation
    double bound;      // absolute, on logits of up to 12
};

// f32: sums of 64 to 128 terms over two layers. bf16: 2^-9 for each rounding, see check_golden.c; random weights of
// this size amplify errors more than trained weights.
#define F32_BOUND  1e-4
#define BF16_BOUND 0.6

static struct variant variant(int i)
{
    struct tiny_model plain = tiny_model_spec("llama");
    struct variant v = {.spec = plain, .dtype = "f32", .bound = F32_BOUND};
    switch (i) {
    case 0: v.name = "llama"; break;
    case 1:
        v.name = "llama3, tied";
        v.spec.family = "llama3";
        v.spec.tied = true;
        break;
    case 2:
        v.name = "mistral, shards, uneven vocabulary";
        v.spec.family = "mistral";
        v.spec.n_shards = 3;
        v.spec.vocab_size = 275;
        break;
    case 3:
        v.name = "qwen2, tied as head, uneven vocabulary";
        v.spec.family = "qwen2";
        v.spec.tied = v.spec.tied_as_head = true;
        v.spec.vocab_size = 273;
        break;
    case 4:
        v.name = "qwen3";
        v.spec.family = "qwen3";
        break;
    case 5:
        v.name = "llama with biases, stored as bf16, uneven tied vocabulary";
        v.spec.attention_bias = v.spec.tied = true;
        v.spec.vocab_size = 274;
        v.spec.dtype = DTYPE_BF16;
        break;
    case 6:
        v.name = "llama without GQA, stored as f16";
        v.spec.n_kv_heads = 8;
        v.spec.head_size = 10; // not a multiple of a vector's length
        v.spec.hidden = 44;
        v.spec.intermediate = 56;
        v.spec.dtype = DTYPE_F16;
        break;
    case 7:
        v.name = "llama3, FP8 with a scale for each output, tied";
        v.spec.family = "llama3";
        v.spec.fp8 = TINY_FP8_CHANNEL;
        v.spec.dtype = DTYPE_BF16;
        v.spec.tied = true;
        break;
    case 8:
        v.name = "qwen2, FP8 with a scale for each matrix, shards, uneven vocabulary";
        v.spec.family = "qwen2";
        v.spec.fp8 = TINY_FP8_TENSOR;
        v.spec.n_shards = 3;
        v.spec.vocab_size = 275;
        break;
    case 9:
        v.name = "qwen3, FP8 with scalar scales";
        v.spec.family = "qwen3";
        v.spec.fp8 = TINY_FP8_STATIC;
        v.spec.dtype = DTYPE_F16;
        break;
    case 10:
        v.name = "llama with biases, MLP in FP8";
        v.spec.fp8 = TINY_FP8_FBGEMM;
        v.spec.dtype = DTYPE_BF16;
        v.spec.attention_bias = true;
        break;
    case 11:
        v.name = "llama, FP8 in bf16";
        v.spec.fp8 = TINY_FP8_CHANNEL;
        v.spec.dtype = DTYPE_BF16;
        v.dtype = "bf16";
        v.bound = BF16_BOUND;
        break;
    default:
        v.name = "llama3 in bf16";
        v.spec.family = "llama3";
        v.spec.dtype = DTYPE_BF16;
        v.dtype = "auto";
        v.bound = BF16_BOUND;
    }
    return v;
}
enum { N_VARIANTS = 13, N_PROMPTS = 3 };

struct comparison {
    const struct variant *v;
    const char *backend;
    struct ranks ranks;
    struct prompt *prompts; // [N_PROMPTS]
    size_t vocab;
    float *packed[N_PROMPTS]; // logits of all rows in one packed pass
    double worst;
};

static void check_packed(struct comparison *c)
{
    forward_start(&f, 8);
    for (int p = 0; p < N_PROMPTS; p++)
        forward_add(&f, p, 0, c->prompts[p].token, c->prompts[p].position, c->prompts[p].n, LOGITS_ALL);
    const float *logits = ranks_forward(&c->ranks, &f.batch).logits;
    for (int p = 0; p < N_PROMPTS; p++) {
        size_t n = (size_t)c->prompts[p].n * c->vocab;
        for (size_t i = 0; i < n; i++) {
            double error = fabs((double)logits[i] - c->prompts[p].logits[i]);
            ck_assert_msg(error <= c->v->bound, "%s, %s, %d ranks: prompt %d row %zu token %zu: %g, expected %g",
                          c->v->name, c->backend, c->ranks.size, p, i / c->vocab, i % c->vocab, (double)logits[i],
                          c->prompts[p].logits[i]);
            c->worst = fmax(c->worst, error);
        }
        c->packed[p] = mem_copy(logits, n * sizeof *logits);
        logits += n;
    }
}

// Runs the same pass with logits of last rows only.
static void check_last_rows(struct comparison *c)
{
    forward_start(&f, 8);
    for (int p = 0; p < N_PROMPTS; p++)
        forward_add(&f, 3 + p, 0, c->prompts[p].token, c->prompts[p].position, c->prompts[p].n, LOGITS_LAST);
    const float *logits = ranks_forward(&c->ranks, &f.batch).logits;
    for (int p = 0; p < N_PROMPTS; p++) {
        const float *last = c->packed[p] + (size_t)(c->prompts[p].n - 1) * c->vocab;
        ck_assert_mem_eq(logits + (size_t)p * c->vocab, last, c->vocab * sizeof *logits);
    }
}

static void check_alone_and_chunked(struct comparison *c)
{
    for (int p = 0; p < N_PROMPTS; p++) {
        const struct prompt *prompt = &c->prompts[p];
        forward_start(&f, 8);
        forward_add(&f, 7, 0, prompt->token, prompt->position, prompt->n, LOGITS_ALL);
        const float *logits = ranks_forward(&c->ranks, &f.batch).logits;
        ck_assert_mem_eq(logits, c->packed[p], (size_t)prompt->n * c->vocab * sizeof *logits);
        for (int done = 0, n; done < prompt->n; done += n) {
            n = 1 + random_below(20);
            n = n < prompt->n - done ? n : prompt->n - done;
            forward_start(&f, 8);
            forward_add(&f, 6, done, prompt->token + done, prompt->position + done, n, LOGITS_ALL);
            logits = ranks_forward(&c->ranks, &f.batch).logits;
            ck_assert_mem_eq(logits, c->packed[p] + (size_t)done * c->vocab, (size_t)n * c->vocab * sizeof *logits);
        }
    }
}

// Checks greedy decode after prompt 0, which check_packed left in slot 0, against the slow implementation.
static void check_greedy(struct comparison *c, const int32_t *expected, int n)
{
    const struct prompt *prompt = &c->prompts[0];
    const float *logits = c->packed[0] + (size_t)(prompt->n - 1) * c->vocab;
    for (int step = 0; step < n; step++) {
        int32_t best = forward_argmax(logits, (int)c->vocab), position = prompt->position[prompt->n - 1] + 1 + step;
        ck_assert_msg(best == expected[step], "%s, %s, %d ranks: step %d chose %d, expected %d", c->v->name, c->backend,
                      c->ranks.size, step, best, expected[step]);
        forward_start(&f, 8);
        forward_add(&f, 0, prompt->n + step, &best, &position, 1, LOGITS_LAST);
        logits = ranks_forward(&c->ranks, &f.batch).logits;
    }
}

// Checks the importance of two prompts in one pass against the definition: softmax over the keys, centred average over
// the smoothing window with zeros outside, maximum over layers and heads.
static void check_importance(struct comparison *c, const double *const *scores)
{
    enum { WINDOW = 5 };
    int heads = c->v->spec.n_layers * c->v->spec.n_heads;
    forward_start(&f, 8);
    for (int p = 0; p < 2; p++) {
        forward_add(&f, 4 + p, 0, c->prompts[p].token, c->prompts[p].position, c->prompts[p].n, LOGITS_NONE);
        forward_add_importance(&f, c->prompts[p].n, WINDOW);
    }
    const float *importance = ranks_forward(&c->ranks, &f.batch).importance;
    for (int p = 0; p < 2; p++) {
        int n = c->prompts[p].n;
        for (int j = 0; j < n; j++) {
            double expected = 0;
            for (int h = 0; h < heads; h++) {
                const double *row = scores[p] + ((size_t)h * (size_t)n + (size_t)n - 1) * (size_t)n;
                double sum = 0, average = 0;
                for (int i = 0; i < n; i++)
                    sum += exp(row[i]);
                for (int i = j - WINDOW / 2; i <= j + WINDOW / 2; i++)
                    average += i >= 0 && i < n ? exp(row[i]) / sum / WINDOW : 0;
                expected = fmax(expected, average);
            }
            double bound = c->v->bound > F32_BOUND ? 0.02 : 1e-5;
            ck_assert_double_eq_tol((double)importance[j], expected, bound);
        }
        importance += n;
    }
}

static void slow_greedy(const struct slow_llama *slow, const struct prompt *prompt, int vocab, int32_t *chosen, int n)
{
    struct prompt longer = *prompt;
    double *logits = mem_alloc_array((size_t)(prompt->n + n) * (size_t)vocab, sizeof *logits);
    for (int step = 0; step < n; step++) {
        slow_llama_run(slow, longer.token, longer.position, longer.n, logits, NULL);
        const double *last = logits + (size_t)(longer.n - 1) * (size_t)vocab;
        int best = 0;
        for (int i = 1; i < vocab; i++)
            best = last[i] > last[best] ? i : best;
        chosen[step] = longer.token[longer.n] = best;
        longer.position[longer.n] = longer.position[longer.n - 1] + 1;
        longer.n++;
    }
    free(logits);
}

START_TEST(forward_equals_the_slow_implementation)
{
    enum { STEPS = 8 };
    static const int lengths[N_PROMPTS] = {37, 5, 70};
    struct variant v = variant(_i / 2);
    char *dir = tiny_model_temp(&v.spec);
    struct slow_llama *slow = slow_llama_create(&v.spec);
    struct prompt prompts[N_PROMPTS];
    double *scores[N_PROMPTS];
    int32_t greedy[STEPS];
    for (int p = 0; p < N_PROMPTS; p++) {
        size_t n = (size_t)lengths[p];
        make_prompt(&prompts[p], &v.spec, lengths[p]);
        prompts[p].logits = mem_alloc_array(n * (size_t)v.spec.vocab_size, sizeof(double));
        scores[p] = mem_alloc_array((size_t)(v.spec.n_layers * v.spec.n_heads) * n * n, sizeof(double));
        slow_llama_run(slow, prompts[p].token, prompts[p].position, lengths[p], prompts[p].logits, scores[p]);
    }
    slow_greedy(slow, &prompts[0], v.spec.vocab_size, greedy, STEPS);

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct comparison c = {
            .v = &v, .backend = backends[_i % 2], .prompts = prompts, .vocab = (size_t)v.spec.vocab_size};
        struct model_options options = options_for(dir, c.backend, v.dtype);
        ranks_open(&c.ranks, &options, sizes[s]);
        check_packed(&c);
        if (v.bound == F32_BOUND) check_greedy(&c, greedy, STEPS);
        check_last_rows(&c);
        check_alone_and_chunked(&c);
        check_importance(&c, (const double *const *)scores);
        printf("%s, %s, ranks=%d: worst_logit_error=%.2e\n", v.name, c.backend, sizes[s], c.worst);
        ranks_close(&c.ranks);
        for (int p = 0; p < N_PROMPTS; p++)
            free(c.packed[p]);
    }
    for (int p = 0; p < N_PROMPTS; p++) {
        free(prompts[p].logits);
        free(scores[p]);
    }
    slow_llama_free(slow);
    tiny_model_remove(dir);
}
END_TEST

// Rows are rounded to 4 bits of mantissa before every gemm with an FP8 matrix: an error of up to 2^-4 of each value.
// Random weights amplify it: the rms error of logits up to 12 is 0.2 with the MLP in FP8, 0.5 with all matrices, and
// 0.7 if the KV cache is FP8 too. Scales applied to the wrong rows would give about 4, the size of the logits.
START_TEST(fp8_checkpoints_are_computed_in_fp8_by_backends_that_support_it)
{
    enum { N = 40 };
    static const enum tiny_fp8 forms[] = {TINY_FP8_CHANNEL, TINY_FP8_TENSOR, TINY_FP8_STATIC, TINY_FP8_FBGEMM};
    static const char *const kv_dtypes[] = {"auto", "fp8"};
    struct tiny_model spec = tiny_model_spec("llama");
    spec.fp8 = forms[_i];
    spec.dtype = DTYPE_BF16;
    size_t vocab = (size_t)spec.vocab_size;
    char *dir = tiny_model_temp(&spec);
    struct slow_llama *slow = slow_llama_create(&spec);
    struct prompt prompt;
    make_prompt(&prompt, &spec, N);
    double *want = mem_alloc_array(N * vocab, sizeof *want);
    slow_llama_run(slow, prompt.token, prompt.position, N, want, NULL);
    for (int i = 0; i < 4; i++) {
        struct ranks ranks;
        struct model_options options = options_for(dir, "reference", "auto");
        options.kv_dtype = kv_dtypes[i % 2];
        ranks_open(&ranks, &options, 1 + i / 2);
        ck_assert_int_eq(model_dtype(ranks.model[0]), DTYPE_FP8);
        ck_assert_int_eq(model_kv_dtype(ranks.model[0]), i % 2 ? DTYPE_FP8 : DTYPE_BF16);
        forward_start(&f, 8);
        forward_add(&f, 0, 0, prompt.token, prompt.position, N, LOGITS_ALL);
        const float *logits = ranks_forward(&ranks, &f.batch).logits;
        double squares = 0;
        for (size_t e = 0; e < N * vocab; e++)
            squares += ((double)logits[e] - want[e]) * ((double)logits[e] - want[e]);
        double rms = sqrt(squares / (double)(N * vocab));
        printf("fp8 form %d, kv %s, ranks=%d: rms_logit_error=%.3f\n", _i, kv_dtypes[i % 2], ranks.size, rms);
        ck_assert_double_le(rms, spec.fp8 == TINY_FP8_FBGEMM ? 0.55 : 0.85);
        ranks_close(&ranks);
    }
    struct ranks ranks;
    struct model_options options = options_for(dir, "cpu", "auto");
    ranks_open(&ranks, &options, 1);
    ck_assert_int_eq(model_dtype(ranks.model[0]), DTYPE_BF16);
    ranks_close(&ranks);
    options.backend = "reference";
    options.dummy = true; // only the shape is read
    ranks_open(&ranks, &options, 1);
    ck_assert_int_eq(model_dtype(ranks.model[0]), DTYPE_FP8);
    ranks_close(&ranks);
    free(want);
    slow_llama_free(slow);
    tiny_model_remove(dir);
}
END_TEST

// ---- one row never depends on another -------------------------------------------------------------------------------

// Six prompts advance by random steps in random batches, prefill next to decode, and restart when they end. Every logit
// row must equal, bit for bit, that of the prompt alone in one pass.
START_TEST(random_batches_equal_each_prompt_alone)
{
    enum { PROMPTS = 6, LENGTH = 60, BATCHES = 2000 };
    struct tiny_model spec = tiny_model_spec("qwen3");
    spec.n_layers = 1;
    spec.hidden = 48;
    spec.n_heads = 4;
    spec.n_kv_heads = 2;
    spec.intermediate = 40;
    spec.vocab_size = 68;
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir, "cpu", _i / 2 ? "bf16" : "f32");
    options.threads = _i % 2 ? 1 : 2;
    struct ranks ranks;
    ranks_open(&ranks, &options, _i % 2 ? 2 : 1);

    struct prompt prompts[PROMPTS];
    float *alone[PROMPTS];
    int done[PROMPTS] = {0};
    size_t vocab = (size_t)spec.vocab_size;
    for (int p = 0; p < PROMPTS; p++) {
        make_prompt(&prompts[p], &spec, LENGTH - p);
        forward_start(&f, 8);
        forward_add(&f, 7, 0, prompts[p].token, prompts[p].position, prompts[p].n, LOGITS_ALL);
        alone[p] = mem_copy(ranks_forward(&ranks, &f.batch).logits, (size_t)prompts[p].n * vocab * sizeof(float));
    }
    for (int batch = 0; batch < BATCHES; batch++) {
        int member[PROMPTS], rows[PROMPTS], n = 0;
        forward_start(&f, 8);
        for (int k = 0, p = random_below(PROMPTS); k < PROMPTS; k++, p = (p + 1) % PROMPTS) {
            if (n && random_below(2)) continue;
            int left = prompts[p].n - done[p], step = random_below(3) ? 1 : 1 + random_below(16);
            member[n] = p;
            rows[n] = step < left ? step : left;
            forward_add(&f, p, done[p], prompts[p].token + done[p], prompts[p].position + done[p], rows[n], LOGITS_ALL);
            n++;
        }
        const float *logits = ranks_forward(&ranks, &f.batch).logits;
        for (int i = 0; i < n; i++) {
            int p = member[i];
            size_t count = (size_t)rows[i] * vocab;
            ck_assert_msg(memcmp(logits, alone[p] + (size_t)done[p] * vocab, count * sizeof *logits) == 0,
                          "batch %d: prompt %d rows %d..%d differ", batch, p, done[p], done[p] + rows[i]);
            logits += count;
            done[p] = (done[p] + rows[i]) % prompts[p].n;
        }
    }
    for (int p = 0; p < PROMPTS; p++)
        free(alone[p]);
    ranks_close(&ranks);
    tiny_model_remove(dir);
}
END_TEST

SUITE("model_forward")
{
    TIMEOUT(60);
    LOOP(forward_equals_the_slow_implementation, 0, 2 * N_VARIANTS);
    LOOP(fp8_checkpoints_are_computed_in_fp8_by_backends_that_support_it, 0, 4);
    LOOP(random_batches_equal_each_prompt_alone, 0, 4);
}
