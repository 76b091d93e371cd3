// SPDX-License-Identifier: Apache-2.0
// model/: the forward pass of every family against slow_llama, on both backends and on 1, 2 and 4 ranks; packed,
// chunked and alone bit for bit; every way a checkpoint can be stored; and checkpoints that contradict their config.
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/forward.h"
#include "tests/heap.h"
#include "tests/slow_llama.h"
#include "tests/tiny_model.h"

static const char *const backends[] = {"reference", "cpu"};
static const int sizes[] = {1, 2, 4, 8}; // of 4 KV heads: in the last each is on two ranks
static struct forward f;

static uint64_t random_state = 7;

static int random_below(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

static struct model_options options_for(const char *dir, const char *backend, const char *dtype)
{
    return (struct model_options){.dir = dir,
                                  .backend = backend,
                                  .dtype = dtype,
                                  .threads = 1,
                                  .max_rows = 256,
                                  .max_seqs = 8,
                                  .max_logit_rows = 256,
                                  .n_kv_blocks = 8 * FORWARD_MAX_BLOCKS};
}

// ---- against the slow implementation --------------------------------------------------------------------------------

// A prompt whose positions leave gaps, as after dropping tokens.
struct prompt {
    int n;
    int32_t token[160], position[160];
    double *logits; // by slow_llama, [n][vocab]
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
    const char *dtype; // computed with
    double bound;      // on logits of up to 12
};

// f32: sums of 64 to 128 terms over two layers. bf16: 2^-9 for each rounding on the way, see check_golden.c; random
// weights of this size amplify errors more than trained ones.
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
        v.spec.head_size = 10; // no multiple of a vector's length
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

// The same pass, asked for last rows alone.
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

// Greedy tokens after prompt 0, which check_packed left in slot 0, equal those of the slow implementation.
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

// Two prompts probed in one pass. The definition, once more: softmax over the keys, centred average over the window
// with zeros outside, maximum over layers and heads.
static void check_probes(struct comparison *c, const double *const *scores)
{
    enum { WINDOW = 5 };
    int heads = c->v->spec.n_layers * c->v->spec.n_heads;
    forward_start(&f, 8);
    for (int p = 0; p < 2; p++) {
        forward_add(&f, 4 + p, 0, c->prompts[p].token, c->prompts[p].position, c->prompts[p].n, LOGITS_NONE);
        forward_add_importance(&f, c->prompts[p].n, WINDOW);
    }
    const float *probes = ranks_forward(&c->ranks, &f.batch).importance;
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
            ck_assert_double_eq_tol((double)probes[j], expected, bound);
        }
        probes += n;
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
        check_probes(&c, (const double *const *)scores);
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

// Rows are rounded to 4 bits of mantissa before every product with an FP8 matrix, so each of their values is off by up
// to 2^-4 of itself: 0.2 in the rms of logits up to 12 with the MLP in FP8, 0.5 with all matrices, 0.7 with K and V as
// well (random weights amplify). Scales of the wrong rows would make it some 4, as large as logits are.
START_TEST(fp8_checkpoints_are_computed_in_fp8_where_that_is_built)
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
    options.dummy = true; // the shape alone
    ranks_open(&ranks, &options, 1);
    ck_assert_int_eq(model_dtype(ranks.model[0]), DTYPE_FP8);
    ranks_close(&ranks);
    free(want);
    slow_llama_free(slow);
    tiny_model_remove(dir);
}
END_TEST

// ---- one row never depends on another -------------------------------------------------------------------------------

// Six prompts advance by random steps in random company, prefill beside decode, and start over when they end. Every
// logit row must equal, bit for bit, that of the prompt run alone in one pass.
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

// ---- storage --------------------------------------------------------------------------------------------------------

static float *logits_of(const char *dir, size_t vocab)
{
    static const int32_t token[] = {3, 1, 4, 1, 5, 9, 2, 6};
    struct ranks ranks;
    struct model_options options = options_for(dir, "reference", "auto");
    ranks_open(&ranks, &options, 1);
    forward_start(&f, 1);
    forward_add(&f, 0, 0, token, NULL, 8, LOGITS_ALL);
    float *copy = mem_copy(ranks_forward(&ranks, &f.batch).logits, 8 * vocab * sizeof(float));
    ranks_close(&ranks);
    return copy;
}

START_TEST(shards_and_either_name_of_a_tied_table_change_nothing)
{
    struct tiny_model spec = tiny_model_spec("llama3");
    spec.tied = true;
    size_t vocab = (size_t)spec.vocab_size, bytes = 8 * vocab * sizeof(float);
    char *single = tiny_model_temp(&spec);
    spec.n_shards = 4;
    char *sharded = tiny_model_temp(&spec);
    float *a = logits_of(single, vocab), *b = logits_of(sharded, vocab);
    ck_assert_mem_eq(a, b, bytes);

    uint64_t one, same, other, third;
    ck_assert_int_eq(model_fingerprint(single, &one), STATUS_OK);
    ck_assert_int_eq(model_fingerprint(sharded, &same), STATUS_OK);
    ck_assert_uint_eq(one, same);
    tiny_model_remove(sharded);
    free(b);
    spec.seed++;
    sharded = tiny_model_temp(&spec);
    ck_assert_int_eq(model_fingerprint(sharded, &other), STATUS_OK);
    ck_assert_uint_ne(one, other);
    tiny_model_remove(sharded);
    spec.seed--;
    spec.max_context /= 2; // the same weights under another config.json
    sharded = tiny_model_temp(&spec);
    ck_assert_int_eq(model_fingerprint(sharded, &third), STATUS_OK);
    ck_assert_uint_ne(one, third);
    tiny_model_remove(sharded);
    free(a);
    tiny_model_remove(single);
    ck_assert_int_eq(model_fingerprint("/nonexistent", &one), STATUS_NOT_FOUND);
}
END_TEST

START_TEST(dtype_and_sizes_are_as_asked_for)
{
    struct tiny_model spec = tiny_model_spec("llama");
    static const struct {
        enum dtype stored;
        const char *asked, *asked_kv;
        enum dtype expected, expected_kv;
        size_t head_bytes; // of the K of one entry
    } cases[] = {{DTYPE_F32, "auto", NULL, DTYPE_F32, DTYPE_F32, 64},
                 {DTYPE_F16, "auto", "auto", DTYPE_BF16, DTYPE_BF16, 32},
                 {DTYPE_BF16, "auto", "bf16", DTYPE_BF16, DTYPE_BF16, 32},
                 {DTYPE_BF16, "auto", "int8", DTYPE_BF16, DTYPE_INT8, 16 + 4},
                 {DTYPE_BF16, "f32", "auto", DTYPE_F32, DTYPE_F32, 64},
                 {DTYPE_F32, "int8", "auto", DTYPE_INT8, DTYPE_BF16, 32},
                 {DTYPE_F32, "int8-g128", "int8", DTYPE_INT8_G128, DTYPE_INT8, 16 + 4},
                 {DTYPE_BF16, "fp8", "auto", DTYPE_FP8, DTYPE_BF16, 32},
                 {DTYPE_BF16, "bf16", "fp8", DTYPE_BF16, DTYPE_FP8, 16 + 4},
                 {DTYPE_F32, "bf16", "auto", DTYPE_BF16, DTYPE_BF16, 32}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ranks ranks;
        spec.dtype = cases[i].stored;
        char *dir = tiny_model_temp(&spec);
        struct model_options options = options_for(dir, "reference", cases[i].asked);
        options.kv_dtype = cases[i].asked_kv;
        options.n_kv_blocks = 0; // 8 contexts of 512 tokens
        ranks_open(&ranks, &options, 2);
        ck_assert_int_eq(model_dtype(ranks.model[0]), cases[i].expected);
        ck_assert_int_eq(model_kv_dtype(ranks.model[0]), cases[i].expected_kv);
        ck_assert_int_eq(model_kv_blocks(ranks.model[0]), 8 * 512 / KV_BLOCK_TOKENS);
        // both ranks' K and V: 2 layers, 4 KV heads of 16
        ck_assert_uint_eq(model_kv_bytes(ranks.model[0]), 8u * 512 * 2 * 2 * 2 * cases[i].head_bytes);
        // embedding and head 272 x 64, per layer qkv 256 x 64, o 64 x 128, MLP 3 x 96 x 64 halved; 5 norms whole
        size_t halved = (2u * 272 * 64 + 2 * (256 * 64 + 64 * 128 + 3 * 96 * 64)) / 2;
        ck_assert_uint_eq(model_weight_bytes(ranks.model[1]), (halved + 5 * 64) * dtype_size_bytes(cases[i].stored));
        ranks_close(&ranks);
        tiny_model_remove(dir);
    }
}
END_TEST

// What all ranks have allocated, and what they count for their rows of logits.
static double allocated(const char *dir, const char *backend, int size, int logit_rows, double *counted_p)
{
    struct ranks ranks;
    struct model_options options = options_for(dir, backend, "f32");
    options.max_logit_rows = logit_rows;
    double before = (double)heap_bytes();
    ranks_open(&ranks, &options, size);
    double bytes = (double)heap_bytes() - before;
    *counted_p = 0;
    for (int rank = 0; rank < size; rank++)
        *counted_p += logit_rows * (double)model_logit_bytes(ranks.model[rank]);
    ranks_close(&ranks);
    return bytes;
}

// One rank has them once: the host reads them where the backend computed them.
START_TEST(rows_of_logits_take_what_is_counted)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = 3001;
    char *dir = tiny_model_temp(&spec);
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < 3; s++) {
            double few, many;
            allocated(dir, backends[b], sizes[s], 1, &few); // what stays after the first is none of a model's
            double made = -allocated(dir, backends[b], sizes[s], 1, &few);
            made += allocated(dir, backends[b], sizes[s], 129, &many);
            ck_assert_msg(fabs(made - (many - few)) <= 0.02 * made, "%s, %d ranks: counted %.0f bytes, made %.0f",
                          backends[b], sizes[s], many - few, made);
            if (sizes[s] == 1) ck_assert_double_le(made, 128 * 1.02 * 3001 * sizeof(float));
        }
    tiny_model_remove(dir);
}
END_TEST

// ---- what is refused ------------------------------------------------------------------------------------------------

static void refuse_open(const struct model_options *options, int size, enum status status, const char *text)
{
    struct ranks ranks;
    enum status got = ranks_try_open(&ranks, options, size);
    ck_assert_msg(got == status, "wanted \"%s\", got %s: \"%s\"", text, status_name(got),
                  got == STATUS_OK ? "" : status_message());
    ck_assert_msg(strstr(status_message(), text) != NULL, "\"%s\" lacks \"%s\"", status_message(), text);
}

START_TEST(splits_that_do_not_work_out_are_refused_with_both_numbers)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.vocab_size = 9;
    spec.intermediate = 90;
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir, "reference", "auto");
    refuse_open(
        &options, 3, STATUS_UNSUPPORTED,
        "4 KV heads cannot be split over 3 ranks: take a number of ranks that divides 4 or is a multiple of it");
    refuse_open(&options, 4, STATUS_UNSUPPORTED, "90 MLP columns cannot be split evenly over 4 ranks");
    tiny_model_remove(dir);
    spec.intermediate = 96; // 9 = 3 + 3 + 3 + 0
    dir = tiny_model_temp(&spec);
    options.dir = dir;
    refuse_open(&options, 4, STATUS_UNSUPPORTED, "vocabulary of 9 is too small for 4 ranks");
    tiny_model_remove(dir);
}
END_TEST

START_TEST(wrong_options_are_refused)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir, "reference", "f64");
    refuse_open(&options, 1, STATUS_INVALID, "dtype f64: must be one of auto|f32|bf16|int8|int8-g128|fp8");
    options = options_for(dir, "reference", "f16");
    refuse_open(&options, 1, STATUS_INVALID, "dtype f16: must be one of");
    options = options_for(dir, "cpu", "fp8");
    refuse_open(&options, 1, STATUS_UNSUPPORTED, "fp8 products and fp8 K and V are for the CUDA backend: take dtype");
    options = options_for(dir, "cpu", "bf16");
    options.kv_dtype = "fp8";
    refuse_open(&options, 1, STATUS_UNSUPPORTED, "fp8 products and fp8 K and V are for the CUDA backend: take dtype");
    options = options_for(dir, "reference", "bf16");
    options.kv_dtype = "int4";
    refuse_open(&options, 1, STATUS_INVALID, "kv-cache-dtype int4: must be one of auto|bf16|int8|fp8");
    options = options_for(dir, "reference", "f32");
    options.kv_dtype = "int8";
    refuse_open(&options, 1, STATUS_INVALID, "kv-cache-dtype int8: a model computed in f32 keeps K and V in f32");
    options = options_for(dir, "abacus", "auto");
    refuse_open(&options, 1, STATUS_INVALID, "abacus");
    options = options_for(dir, "reference", "auto");
    options.max_context = 513;
    refuse_open(&options, 1, STATUS_INVALID, "max_context 513: must be in 1..512");
    options = options_for(dir, "reference", "auto");
    options.max_rows = 0;
    refuse_open(&options, 1, STATUS_INVALID, "0 rows");
    options = options_for("/nonexistent", "reference", "auto");
    refuse_open(&options, 1, STATUS_NOT_FOUND, "/nonexistent/config.json: No such file");
    tiny_model_remove(dir);
}
END_TEST

// The weights of `stored` under the config.json of `described`.
static void refuse_mix(const struct tiny_model *stored, const struct tiny_model *described, const char *text)
{
    char *dir = tiny_model_temp(stored), *other = tiny_model_temp(described);
    char *from = mem_format("%s/config.json", other), *to = mem_format("%s/config.json", dir);
    ck_assert_int_eq(rename(from, to), 0);
    struct model_options options = options_for(dir, "reference", "auto");
    refuse_open(&options, 1, STATUS_DATA, text);
    refuse_open(&options, 2, STATUS_DATA, text);
    free(from);
    free(to);
    tiny_model_remove(dir);
    tiny_model_remove(other);
}

START_TEST(weights_that_contradict_the_config_are_refused)
{
    struct tiny_model stored = tiny_model_spec("llama"), described = stored;
    described.vocab_size = 280;
    refuse_mix(&stored, &described,
               "tensor model.embed_tokens.weight has shape [272, 64], but config.json calls for [280, 64]");
    described = stored;
    described.hidden = 32;
    refuse_mix(&stored, &described, "embed_tokens.weight has shape [272, 64], but config.json calls for [272, 32]");
    described = stored;
    described.n_kv_heads = 2;
    refuse_mix(&stored, &described, "self_attn.k_proj.weight has shape [64, 64], but config.json calls for [32, 64]");
    described = stored;
    described.head_size = 8;
    refuse_mix(&stored, &described, "self_attn.q_proj.weight has shape [128, 64], but config.json calls for [64, 64]");
    described = stored;
    described.intermediate = 64;
    refuse_mix(&stored, &described, "mlp.gate_proj.weight has shape [96, 64], but config.json calls for [64, 64]");
    described = stored;
    described.n_layers = 3;
    refuse_mix(&stored, &described, "no tensor model.layers.2.input_layernorm.weight");
    described = stored;
    described.n_layers = 1;
    refuse_mix(&stored, &described, "tensor model.layers.1.input_layernorm.weight does not belong");

    struct tiny_model qwen2 = tiny_model_spec("qwen2"), qwen3 = tiny_model_spec("qwen3"), tied = stored;
    refuse_mix(&qwen2, &stored, "self_attn.k_proj.bias does not belong to a LlamaForCausalLM");
    refuse_mix(&stored, &qwen2, "no tensor model.layers.0.self_attn.q_proj.bias");
    refuse_mix(&qwen3, &stored, "self_attn.k_norm.weight does not belong");
    refuse_mix(&stored, &qwen3, "no tensor model.layers.0.self_attn.q_norm.weight");
    tied.tied = true;
    refuse_mix(&tied, &stored, "no tensor lm_head.weight, which config.json calls for");
    tied.tied_as_head = true;
    refuse_mix(&tied, &stored, "no tensor model.embed_tokens.weight");
}
END_TEST

// The matrices of FP8 and their scales count as they are stored: this rank's share, norms and what other ranks have
// whole.
START_TEST(fp8_weights_are_counted_with_their_scales)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.dtype = DTYPE_BF16;
    size_t tables = 2u * 272 * 64 / 2, qkv = 256 * 64 / 2, o = 64 * 128 / 2, mlp = 3 * 96 * 64 / 2, norms = 5 * 64;
    const size_t scales[] = {[TINY_FP8_CHANNEL] = 2 * (256 / 2 + 64 + 2 * 96 / 2 + 64) * 2,
                             [TINY_FP8_TENSOR] = 2 * 7 * 2,
                             [TINY_FP8_STATIC] = 2 * 7 * 4,
                             [TINY_FP8_FBGEMM] = 2 * (2 * 96 / 2 + 64) * 4};
    for (spec.fp8 = TINY_FP8_CHANNEL; spec.fp8 <= TINY_FP8_FBGEMM; spec.fp8++) {
        struct ranks ranks;
        char *dir = tiny_model_temp(&spec);
        struct model_options options = options_for(dir, "reference", "auto");
        ranks_open(&ranks, &options, 2);
        size_t attention = 2 * (qkv + o) * (spec.fp8 == TINY_FP8_FBGEMM ? 2 : 1);
        ck_assert_uint_eq(model_weight_bytes(ranks.model[1]),
                          2 * (tables + norms) + attention + 2 * mlp + scales[spec.fp8]);
        ranks_close(&ranks);
        tiny_model_remove(dir);
    }
}
END_TEST

// Computed with an f32 scale for each output whatever is stored; norms are f32.
START_TEST(fp8_is_planned_with_what_stays_in_16_bits)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.dtype = DTYPE_BF16;
    size_t tables = 2u * 272 * 64 * 2, qkv = 256 * 64, o = 64 * 128, mlp = 3 * 96 * 64, norms = 5 * 64 * 4;
    size_t attention_scales = 2 * (256 + 64) * 4, mlp_scales = 2 * (2 * 96 + 64) * 4;
    for (spec.fp8 = TINY_FP8_CHANNEL; spec.fp8 <= TINY_FP8_FBGEMM; spec.fp8++) {
        struct memory_plan plan;
        char *dir = tiny_model_temp(&spec), *shape = mem_format("%s/config.json", dir);
        size_t attention = 2 * (qkv + o) * (spec.fp8 == TINY_FP8_FBGEMM ? 2 : 1);
        if (spec.fp8 != TINY_FP8_FBGEMM) attention += attention_scales;
        for (int alone = 0; alone < 2; alone++) {
            struct model_options options = options_for(alone ? shape : dir, "cuda", "auto");
            options.dummy = alone;
            enum status status = model_plan(&options, 0, 1, &plan);
            ck_assert_msg(status == STATUS_OK, "%s", status_message());
            ck_assert_int_eq(plan.dtype, DTYPE_FP8);
            ck_assert_uint_eq(plan.weight_bytes, tables + attention + 2 * mlp + mlp_scales + norms);
        }
        free(shape);
        tiny_model_remove(dir);
    }
}
END_TEST

// The file of a checkpoint of one file, read into memory, changed and written back.
struct edit {
    char *path, *bytes;
    size_t n;
};

static struct edit edit_begin(const char *dir)
{
    struct edit e = {.path = mem_format("%s/model.safetensors", dir)};
    FILE *file = fopen(e.path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    e.n = (size_t)ftell(file);
    rewind(file);
    e.bytes = mem_alloc(e.n);
    ck_assert_uint_eq(fread(e.bytes, 1, e.n, file), e.n);
    fclose(file);
    return e;
}

static void edit_end(struct edit *e)
{
    FILE *file = fopen(e->path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(e->bytes, 1, e->n, file), e->n);
    ck_assert_int_eq(fclose(file), 0);
    free(e->path);
    free(e->bytes);
}

// The header's entry of a tensor.
static char *edit_entry(const struct edit *e, const char *tensor)
{
    char *quoted = mem_format("\"%s\"", tensor), *at = memmem(e->bytes, e->n, quoted, strlen(quoted));
    ck_assert_ptr_nonnull(at);
    free(quoted);
    return at;
}

static void edit_text(const char *dir, const char *tensor, const char *from, const char *to)
{
    struct edit e = edit_begin(dir);
    char *entry = edit_entry(&e, tensor), *at = memmem(entry, 200, from, strlen(from));
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_eq(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    edit_end(&e);
}

static void edit_f32(const char *dir, const char *tensor, size_t index, float value)
{
    struct edit e = edit_begin(dir);
    uint64_t header_bytes;
    size_t offset;
    memcpy(&header_bytes, e.bytes, sizeof header_bytes);
    char *offsets = memmem(edit_entry(&e, tensor), 200, "data_offsets\":[", 15);
    ck_assert_ptr_nonnull(offsets);
    ck_assert_int_eq(sscanf(offsets + 15, "%zu", &offset), 1);
    memcpy(e.bytes + 8 + header_bytes + offset + index * sizeof value, &value, sizeof value);
    edit_end(&e);
}

#define GATE "model.layers.1.mlp.gate_proj.weight"

START_TEST(broken_scales_are_refused_each_with_its_sentence)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.fp8 = TINY_FP8_FBGEMM;
    static const struct {
        const char *tensor, *from, *to; // of the header
        enum status status;
        const char *text;
    } cases[] = {
        {GATE "_scale", "_scale", "_scalf", STATUS_DATA,
         "tensor " GATE " is F8_E4M3, but there is no tensor " GATE "_scale"},
        {GATE "_scale", "[96,1]", "[1,96]", STATUS_DATA,
         "tensor " GATE
         "_scale has shape [1, 96]: must be [1], one scale for the matrix, or [96, 1], one for each output"},
        {GATE "_scale", "[96,1]", "[48,2]", STATUS_DATA, "has shape [48, 2]: must be [1]"},
        {GATE "_scale", "F32", "I32", STATUS_UNSUPPORTED, "_scale is I32: must be F32, F16 or BF16"},
        {GATE, "F8_E4M3", "F8_E5M2", STATUS_UNSUPPORTED, GATE " is F8_E5M2: must be F32, F16, BF16 or F8_E4M3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *dir = tiny_model_temp(&spec);
        edit_text(dir, cases[i].tensor, cases[i].from, cases[i].to);
        for (int size = 1; size <= 2; size++) {
            struct model_options options = options_for(dir, "reference", "auto");
            refuse_open(&options, size, cases[i].status, cases[i].text);
            refuse_open(&options, size, cases[i].status, "model.safetensors");
        }
        tiny_model_remove(dir);
    }
    static const float values[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        char *dir = tiny_model_temp(&spec);
        edit_f32(dir, GATE "_scale", 95, values[i]);
        struct model_options options = options_for(dir, "cpu", "auto");
        refuse_open(&options, 1, STATUS_DATA, "model.safetensors: tensor " GATE "_scale: scale 95 is ");
        refuse_open(&options, 1, STATUS_DATA, ": must be a positive number");
        tiny_model_remove(dir);
    }
    struct tiny_model plain = tiny_model_spec("llama");
    refuse_mix(&spec, &plain, "is F8_E4M3, but config.json has no quantization_config");
}
END_TEST

// [N] says what [N, 1] says; and a copy with another scale is another checkpoint.
START_TEST(scales_have_one_dimension_or_two_and_count_as_weights)
{
    struct tiny_model spec = tiny_model_spec("llama");
    spec.fp8 = TINY_FP8_FBGEMM;
    size_t vocab = (size_t)spec.vocab_size, bytes = 8 * vocab * sizeof(float);
    uint64_t before, after;
    char *dir = tiny_model_temp(&spec);
    float *two = logits_of(dir, vocab);
    edit_text(dir, GATE "_scale", "[96,1]", "[96]  ");
    float *one = logits_of(dir, vocab);
    ck_assert_mem_eq(one, two, bytes);
    ck_assert_int_eq(model_fingerprint(dir, &before), STATUS_OK);
    edit_f32(dir, GATE "_scale", 95, 1);
    ck_assert_int_eq(model_fingerprint(dir, &after), STATUS_OK);
    ck_assert_uint_ne(before, after);
    free(one);
    one = logits_of(dir, vocab);
    ck_assert_mem_ne(one, two, bytes);
    free(one);
    free(two);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(types_that_are_no_weights_are_refused)
{
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec), *path = mem_format("%s/model.safetensors", dir), header[256];
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(header, 1, sizeof header, file), sizeof header);
    char *type = memmem(header, sizeof header, "\"F32\"", 5); // of model.embed_tokens.weight
    ck_assert_ptr_nonnull(type);
    ck_assert_int_eq(fseek(file, type + 1 - header, SEEK_SET), 0);
    ck_assert_int_eq(fputc('I', file), 'I');
    fclose(file);
    struct model_options options = options_for(dir, "reference", "auto");
    refuse_open(&options, 1, STATUS_UNSUPPORTED,
                "tensor model.embed_tokens.weight is I32: must be F32, F16, BF16 or "
                "F8_E4M3");
    free(path);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(a_batch_over_the_limits_is_refused_and_the_next_one_runs)
{
    static const int32_t token[] = {1, 2, 3, 271}, outside[] = {1, 272}, negative[] = {-1}, before[] = {-5};
    struct tiny_model spec = tiny_model_spec("llama");
    char *dir = tiny_model_temp(&spec);
    for (int size = 1; size <= 2; size++) {
        struct model_options options = options_for(dir, "reference", "auto");
        options.max_rows = 4;
        options.max_logit_rows = 2;
        struct ranks ranks;
        struct forward_result result;
        ranks_open(&ranks, &options, size);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_ALL);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        ck_assert_ptr_nonnull(strstr(status_message(), "4 logit rows; room for 2"));
        forward_start(&f, 2);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_NONE);
        forward_add(&f, 1, 0, token, NULL, 1, LOGITS_NONE);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, outside, NULL, 2, LOGITS_LAST);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        ck_assert_ptr_nonnull(strstr(status_message(), "token 272 of 272"));
        forward_start(&f, 1);
        forward_add(&f, 0, 0, negative, NULL, 1, LOGITS_LAST);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, before, 1, LOGITS_LAST);
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);
        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_LAST);
        f.logit_row[0] = 4;
        ck_assert_int_eq(ranks_try_forward(&ranks, &f.batch, &result), STATUS_INTERNAL);

        forward_start(&f, 1);
        forward_add(&f, 0, 0, token, NULL, 4, LOGITS_LAST);
        result = ranks_forward(&ranks, &f.batch);
        ck_assert_ptr_nonnull(result.logits);
        ck_assert_ptr_null(result.importance);
        ranks_close(&ranks);
    }
    tiny_model_remove(dir);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model");
    TCase *tests = tcase_create("model");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, forward_equals_the_slow_implementation, 0, 2 * N_VARIANTS);
    tcase_add_loop_test(tests, fp8_checkpoints_are_computed_in_fp8_where_that_is_built, 0, 4);
    tcase_add_loop_test(tests, random_batches_equal_each_prompt_alone, 0, 4);
    tcase_add_test(tests, shards_and_either_name_of_a_tied_table_change_nothing);
    tcase_add_test(tests, dtype_and_sizes_are_as_asked_for);
    tcase_add_test(tests, rows_of_logits_take_what_is_counted);
    tcase_add_test(tests, splits_that_do_not_work_out_are_refused_with_both_numbers);
    tcase_add_test(tests, wrong_options_are_refused);
    tcase_add_test(tests, weights_that_contradict_the_config_are_refused);
    tcase_add_test(tests, fp8_weights_are_counted_with_their_scales);
    tcase_add_test(tests, fp8_is_planned_with_what_stays_in_16_bits);
    tcase_add_test(tests, broken_scales_are_refused_each_with_its_sentence);
    tcase_add_test(tests, scales_have_one_dimension_or_two_and_count_as_weights);
    tcase_add_test(tests, types_that_are_no_weights_are_refused);
    tcase_add_test(tests, a_batch_over_the_limits_is_refused_and_the_next_one_runs);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
