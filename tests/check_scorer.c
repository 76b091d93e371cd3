// SPDX-License-Identifier: Apache-2.0
// speculator/scorer with models: importance and kept tokens against the slow double-precision implementation
// (slow_importance.h, slow_select.h), scores that do not depend on other prompts, and the golden attention of a trained
// model.
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "sim/slow_spans.h"
#include "speculator/scorer.h"
#include "tests/comm_threads.h"
#include "tests/model_fixture.h"
#include "tests/slow_importance.h"
#include "tests/slow_select.h"
#include "tests/suite.h"
#include "tests/test_data.h"

enum { MAX_PROMPTS = 16, MAX_TOKENS = 256, MAX_RANKS = 4, MAX_VOCAB = 1 << 17 };

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

// --- a tensor-parallel group of threads; this thread is its leader

struct group {
    int size;
    struct comm *comms[MAX_RANKS];
    struct model *models[MAX_RANKS];
    struct model_options options;
    pthread_t threads[MAX_RANKS];
    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    const struct ragged_batch *batch;
    int step, running; // running: followers still in the pass, which read the leader's batch
    bool stop;
};

struct follower {
    struct group *group;
    int rank;
};

static void *follow(void *argument)
{
    struct follower *me = argument;
    struct group *g = me->group;
    enum status status = model_open(&g->options, g->comms[me->rank], &g->models[me->rank]);
    if (status == STATUS_OK) status = model_join(g->models[me->rank]);
    if (status == STATUS_OK) status = model_warm_up(g->models[me->rank]);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    for (int step = 0;;) {
        pthread_mutex_lock(&g->mutex);
        while (!g->stop && g->step == step)
            pthread_cond_wait(&g->changed, &g->mutex);
        bool stop = g->stop;
        step = g->step;
        pthread_mutex_unlock(&g->mutex);
        if (stop) break;
        struct forward_result out;
        status = model_forward(g->models[me->rank], g->batch, &out); // the leader's collectives wait for it
        ck_assert_msg(status == STATUS_OK, "%s", status_message());
        pthread_mutex_lock(&g->mutex);
        g->running--;
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->mutex);
    }
    model_close(g->models[me->rank]);
    free(me);
    return NULL;
}

static enum status group_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    struct group *g = context;
    pthread_mutex_lock(&g->mutex);
    g->batch = batch;
    g->step++;
    g->running = g->size - 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    enum status status = model_forward(g->models[0], batch, result);
    pthread_mutex_lock(&g->mutex);
    while (g->running)
        pthread_cond_wait(&g->changed, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    return status;
}

static struct group *test_group_open(const char *dir, const char *backend, const char *dtype, const char *kv_dtype,
                                     int size)
{
    struct group *g = mem_alloc(sizeof *g);
    g->size = size;
    g->options = (struct model_options){.dir = dir,
                                        .backend = backend,
                                        .dtype = dtype,
                                        .kv_dtype = kv_dtype,
                                        .threads = 1,
                                        .max_rows = 1024,
                                        .max_seqs = 16,
                                        .n_kv_blocks = 400};
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->changed, NULL);
    if (size == 1) {
        ck_assert_int_eq(comm_open_self(&g->comms[0]), STATUS_OK);
    } else {
        ck_assert_int_eq(comm_open_threads(size, g->comms), STATUS_OK);
    }
    for (int r = 1; r < size; r++) {
        struct follower *f = mem_alloc(sizeof *f);
        *f = (struct follower){g, r};
        ck_assert_int_eq(pthread_create(&g->threads[r], NULL, follow, f), 0);
    }
    enum status status = model_open(&g->options, g->comms[0], &g->models[0]);
    if (status == STATUS_OK) status = model_join(g->models[0]);
    if (status == STATUS_OK) status = model_warm_up(g->models[0]);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    return g;
}

static void test_group_close(struct group *g)
{
    pthread_mutex_lock(&g->mutex);
    g->stop = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    for (int r = 1; r < g->size; r++)
        pthread_join(g->threads[r], NULL);
    model_close(g->models[0]);
    for (int r = 0; r < g->size; r++)
        g->comms[r]->ops->close(g->comms[r]);
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->changed);
    free(g);
}

// --- scoring a set of prompts

struct prompt_case {
    int32_t tokens[MAX_TOKENS];
    int n;
    struct prefill prefill;
    int rate; // thousandths, equal to prefill.keep_rate
    int tail_tokens;
    struct token_range pinned;
    int n_pinned;
    const char *error; // expected error; NULL: none
};

struct scores {
    float importance[MAX_TOKENS];
    bool kept[MAX_TOKENS];
    int steps, answers;
    int reused; // number of reused tokens in all answers
    const char *error;
};

static void take_result(void *context, const struct score_result *result)
{
    struct scores *s = (struct scores *)context + result->request;
    s->answers++;
    s->error = result->error;
    if (s->error) return;
    memcpy(s->importance, result->importance, (size_t)result->n * sizeof(float));
    memset(s->kept, 0, sizeof s->kept);
    for (int i = 0; i < result->n_kept; i++)
        for (int j = result->kept[i].first; j <= result->kept[i].last; j++)
            s->kept[j] = true;
    s->steps = result->steps;
    s->reused += result->cached_tokens;
}

static bool ends_sentence(int32_t token)
{
    return token % 7 == 0;
}

// Scores the cases. `budget`, `seqs` and `blocks` 0 mean those of the model. With a prefix cache every prompt is scored
// twice.
static void score_cached(struct group *g, const struct model_config *config, const struct prompt_case *cases,
                         int n_cases, int budget, int seqs, int blocks, bool prefix_cache, struct scores *scores)
{
    static uint8_t marks[MAX_VOCAB];
    const struct sentence_table sentences = {marks, config->vocab_size};
    ck_assert_int_le(config->vocab_size, MAX_VOCAB);
    for (int32_t token = 0; token < config->vocab_size; token++)
        marks[token] = ends_sentence(token) ? SENTENCE_ENDS_LINE : 0;
    struct scorer_model model = {.config = config,
                                 .sentences = &sentences,
                                 .token_budget = budget ? budget : g->options.max_rows,
                                 .max_seqs = seqs ? seqs : g->options.max_seqs,
                                 .context_tokens = config->max_context,
                                 .kv_blocks = blocks ? blocks : g->options.n_kv_blocks,
                                 .prefix_cache = prefix_cache,
                                 .samples = model_samples(g->models[0]),
                                 .forward = group_forward,
                                 .context = g};
    struct scorer *s = scorer_create(&model, take_result, scores);
    memset(scores, 0, (size_t)n_cases * sizeof *scores);
    for (int round = 0; round <= prefix_cache; round++) {
        for (int i = 0; i < n_cases; i++)
            scorer_add(s, &(struct score_item){.request = (uint64_t)i,
                                               .tokens = cases[i].tokens,
                                               .n = cases[i].n,
                                               .prefill = cases[i].prefill,
                                               .pinned = &cases[i].pinned,
                                               .n_pinned = cases[i].n_pinned,
                                               .tail_tokens = cases[i].tail_tokens,
                                               .want_importance = true});
        while (scorer_get_load(s).running + scorer_get_load(s).waiting) {
            enum status status = scorer_step(s);
            ck_assert_msg(status == STATUS_OK, "%s", status_message());
        }
        ck_assert_int_eq(scorer_get_load(s).kv_blocks_free, model.kv_blocks);
        for (int i = 0; i < n_cases; i++) {
            ck_assert_int_eq(scores[i].answers, round + 1);
            ck_assert_pstr_eq(scores[i].error, cases[i].error);
        }
    }
    scorer_free(s);
}

static void score(struct group *g, const struct model_config *config, const struct prompt_case *cases, int n_cases,
                  int budget, int seqs, int blocks, struct scores *scores)
{
    score_cached(g, config, cases, n_cases, budget, seqs, blocks, false, scores);
}

static void make_cases(struct prompt_case *cases, int n_cases, int longest, const struct model_config *config)
{
    static const int look_aheads[] = {1, 4, 8}, chunks[] = {32, 0, 8}, windows[] = {13, 1};
    for (int i = 0; i < n_cases; i++) {
        struct prompt_case *c = &cases[i];
        c->n = 1 + (int)random_below((uint32_t)longest);
        for (int j = 0; j < c->n; j++)
            c->tokens[j] = (int32_t)random_below((uint32_t)config->vocab_size);
        if (config->bos_id >= 0 && i % 3) c->tokens[0] = config->bos_id;
        c->rate = 50 * (1 + (int)random_below(12));
        c->prefill = (struct prefill){.keep_rate = c->rate / 1000.0,
                                      .look_ahead = look_aheads[i % 3],
                                      .chunk_tokens = chunks[i / 3 % 3],
                                      .pool_window = windows[i / 9 % 2],
                                      .paper_exact = random_below(2)};
        if (i % 4 == 3) c->prefill.chunk_tokens = CHUNK_TOKENS_AUTO;
        c->tail_tokens = (int)random_below((uint32_t)c->n / 4 + 1);
        c->n_pinned = (int)random_below(2);
        c->pinned.first = (int32_t)random_below((uint32_t)c->n);
        c->pinned.last = c->pinned.first + (int32_t)random_below((uint32_t)(c->n - c->pinned.first));
    }
}

// Compares with the slow implementation. Returns false if the kept set cannot be compared, because two scores are so
// close that f32 may rank the chunks the other way. `near` bounds the error of one importance.
static bool compare(const struct slow_llama *slow, const struct tiny_model *spec, const struct model_config *config,
                    const struct prompt_case *c, const struct scores *got, double near)
{
    double importance[MAX_TOKENS], gap;
    int32_t sampled[LOOK_AHEAD_MAX];
    int steps = slow_importance(slow, spec, c->tokens, c->n, c->prefill.look_ahead, c->prefill.pool_window,
                                config->eos_id, config->n_eos, importance, sampled, &gap);
    if (gap < 1e-4) return false; // f32 may rank the two best logits the other way
    ck_assert_int_eq(got->steps, steps);
    for (int j = 0; j < c->n; j++)
        ck_assert_double_eq_tol(got->importance[j], importance[j], near);
    bool kept[MAX_TOKENS];
    uint8_t ends[MAX_TOKENS];
    for (int j = 0; j < c->n; j++)
        ends[j] = ends_sentence(c->tokens[j]);
    struct select_policy policy = select_policy_of(&c->prefill);
    policy.keep_first = c->tokens[0] == config->bos_id;
    policy.tail_tokens = c->tail_tokens;
    policy.pinned = &c->pinned;
    policy.n_pinned = c->n_pinned;
    policy.ends = ends;
    if (policy.chunk_tokens == CHUNK_TOKENS_AUTO)
        slow_select_spans(got->importance, c->n, &policy, kept);
    else if (slow_select(importance, c->n, &policy, c->rate, kept) < 2 * near)
        return false;
    ck_assert_mem_eq(got->kept, kept, (size_t)c->n * sizeof *kept);
    return true;
}

static const struct {
    const char *family, *backend;
    int ranks;
} settings[] = {
    {"llama", "reference", 1}, {"llama", "reference", 2}, {"llama", "cpu", 1},
    {"llama", "cpu", 2},       {"qwen2", "cpu", 4},       {"qwen3", "cpu", 2},
};

static struct tiny_model tiny_spec(const char *family)
{
    struct tiny_model spec = tiny_model_spec(family);
    spec.tokenizer = true; // for its BOS and EOS ids
    spec.n_layers = 3;
    return spec;
}

START_TEST(importance_and_kept_tokens_equal_the_slow_implementation)
{
    random_state = (uint64_t)_i + 40;
    struct tiny_model spec = tiny_spec(settings[_i].family);
    char *dir = tiny_model_temp(&spec);
    struct model_config config;
    ck_assert_int_eq(model_config_read(dir, &config), STATUS_OK);
    struct slow_llama *slow = slow_llama_create(&spec);
    struct group *g = test_group_open(dir, settings[_i].backend, "f32", "auto", settings[_i].ranks);
    static struct prompt_case cases[18];
    static struct scores scores[18];
    make_cases(cases, 18, 120, &config);
    score(g, &config, cases, 18, 200, 0, 0, scores);
    int compared = 0;
    for (int i = 0; i < 18; i++)
        compared += compare(slow, &spec, &config, &cases[i], &scores[i], 2e-5);
    ck_assert_int_ge(compared, 12);
    test_group_close(g);
    slow_llama_free(slow);
    tiny_model_remove(dir);
}
END_TEST

START_TEST(eos_ends_the_look_ahead_after_the_step_that_sampled_it)
{
    random_state = (uint64_t)_i + 7;
    struct tiny_model spec = tiny_spec("llama");
    char *dir = tiny_model_temp(&spec);
    struct model_config config;
    ck_assert_int_eq(model_config_read(dir, &config), STATUS_OK);
    struct slow_llama *slow = slow_llama_create(&spec);
    struct group *g = test_group_open(dir, _i ? "cpu" : "reference", "f32", "auto", 1);
    static struct prompt_case cases[9];
    static struct scores scores[9];
    make_cases(cases, 9, 60, &config);
    int seen[9] = {0};
    for (int i = 0; i < 9; i++) {
        cases[i].prefill.look_ahead = 8;
        // First the model generates tokens after this prompt without an EOS. Then one of these tokens becomes the EOS.
        int32_t sampled[8];
        double importance[MAX_TOKENS], gap;
        config.n_eos = 0;
        int steps = slow_importance(slow, &spec, cases[i].tokens, cases[i].n, 8, cases[i].prefill.pool_window, NULL, 0,
                                    importance, sampled, &gap);
        ck_assert_int_eq(steps, 8);
        config.eos_id[0] = (int32_t)config.vocab_size - 1;
        config.eos_id[1] = sampled[i % 8];
        config.n_eos = 2;
        score(g, &config, &cases[i], 1, 0, 0, 0, &scores[i]);
        if (compare(slow, &spec, &config, &cases[i], &scores[i], 2e-5)) seen[scores[i].steps]++;
        ck_assert_int_le(scores[i].steps, i % 8 + 1);
    }
    ck_assert_int_ge(seen[1], 1); // at the first step, with the prompt's last token
    int between = 0;
    for (int steps = 2; steps < 8; steps++)
        between += seen[steps];
    ck_assert_int_ge(between, 2);
    test_group_close(g);
    slow_llama_free(slow);
    tiny_model_remove(dir);
}
END_TEST

// Scores have the same bits packed, chunked, with other smoothing windows, after cached prefixes, and alone.
START_TEST(neighbours_chunks_and_budget_change_no_bit)
{
    random_state = (uint64_t)_i + 90;
    struct tiny_model spec = tiny_spec(_i % 2 ? "qwen3" : "llama");
    char *dir = tiny_model_temp(&spec);
    struct model_config config;
    ck_assert_int_eq(model_config_read(dir, &config), STATUS_OK);
    struct group *g = test_group_open(dir, "cpu", _i < 2 ? "f32" : "bf16", _i < 4 ? "auto" : "int8", _i == 1 ? 2 : 1);
    static struct prompt_case cases[18];
    static struct scores alone[18], packed[18];
    make_cases(cases, 18, 150, &config);
    for (int i = 1; i < 18; i += 2) // most tokens equal those of the prompt before
        memcpy(cases[i].tokens, cases[i - 1].tokens, (size_t)(cases[i].n * 3 / 4) * sizeof *cases[i].tokens);
    for (int i = 0; i < 18; i++)
        score(g, &config, &cases[i], 1, 0, 0, 0, &alone[i]);
    static const struct {
        int budget, seqs, blocks;
        bool prefix_cache;
    } loads[] = {{0, 0, 0, false},   {200, 0, 0, false}, {33, 0, 0, false}, {7, 5, 0, false}, {1024, 3, 0, false},
                 {64, 0, 11, false}, {200, 0, 0, true},  {7, 5, 0, true},   {64, 0, 11, true}};
    for (size_t l = 0; l < sizeof loads / sizeof loads[0]; l++) {
        score_cached(g, &config, cases, 18, loads[l].budget, loads[l].seqs, loads[l].blocks, loads[l].prefix_cache,
                     packed);
        int reused = 0;
        for (int i = 0; i < 18; i++) {
            reused += packed[i].reused;
            ck_assert_int_eq(packed[i].steps, alone[i].steps);
            ck_assert_mem_eq(packed[i].importance, alone[i].importance, (size_t)cases[i].n * sizeof(float));
            ck_assert_mem_eq(packed[i].kept, alone[i].kept, (size_t)cases[i].n * sizeof(bool));
        }
        ck_assert_int_eq(reused > 100, loads[l].prefix_cache);
    }
    test_group_close(g);
    tiny_model_remove(dir);
}
END_TEST

// The importance of the first layer alone is finite. It must not hide the importance of the second layer.
START_TEST(attention_that_is_not_finite_is_an_error)
{
    random_state = (uint64_t)_i + 60;
    struct tiny_model spec = tiny_spec("llama");
    char *dir = tiny_model_temp(&spec);
    edit_f32(dir, "model.layers.1.self_attn.k_proj.weight", 0, NAN);
    struct model_config config;
    ck_assert_int_eq(model_config_read(dir, &config), STATUS_OK);
    struct group *g = test_group_open(dir, _i ? "cpu" : "reference", "f32", "auto", 1);
    static struct prompt_case cases[3];
    static struct scores scores[3];
    make_cases(cases, 3, 120, &config);
    for (int i = 0; i < 3; i++) {
        cases[i].prefill.look_ahead = 1; // a second step needs a token, and thus finite logits
        cases[i].error = "the model's attention is not finite";
    }
    score(g, &config, cases, 3, 0, 0, 0, scores);
    test_group_close(g);
    tiny_model_remove(dir);
}
END_TEST

// --- a trained model's attention, computed by another implementation in float64

// The vectors were computed in float64; the attention of these models is so peaked that f32 differs by this much.
#define GOLDEN_NEAR 1e-4

static float *read_npy(const char *path, size_t *count_p)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s", path);
    unsigned char head[10];
    ck_assert_int_eq(fread(head, 1, 10, file), 10);
    ck_assert_mem_eq(head, "\x93NUMPY\x01", 7);
    size_t skip = head[8] + 256u * head[9];
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file) - 10 - skip;
    float *values = malloc(bytes);
    fseek(file, (long)(10 + skip), SEEK_SET);
    *count_p = fread(values, sizeof *values, bytes / sizeof *values, file);
    ck_assert_int_eq(*count_p * sizeof *values, bytes);
    fclose(file);
    return values;
}

// The file has attention rows of the last prompt token and of seven look-ahead tokens, per head. Look-ahead tokens also
// attend to generated tokens, so each row is normalised over the prompt. If a head hardly attends to the prompt, the
// file's f32 lose its row. Then `*exact_p` is false, and the result is a lower bound.
static void golden_importance(const float *attention, int heads, int n, int look_ahead, int window, double *importance,
                              bool *exact_p)
{
    *exact_p = true;
    memset(importance, 0, (size_t)n * sizeof *importance);
    for (int step = 0; step < look_ahead; step++) {
        double maximum[MAX_TOKENS] = {0};
        for (int h = 0; h < heads; h++) {
            const float *row = attention + (size_t)(step * heads + h) * (size_t)n;
            double probability[MAX_TOKENS], total = 0;
            for (int j = 0; j < n; j++)
                total += (double)row[j];
            if (total < 1e-30) {
                *exact_p = false;
                continue;
            }
            for (int j = 0; j < n; j++)
                probability[j] = (double)row[j] / total;
            slow_raise(probability, n, window, maximum);
        }
        for (int j = 0; j < n; j++)
            importance[j] += maximum[j] / look_ahead;
    }
}

static const struct {
    const char *model, *backend;
    int ranks;
} goldens[] = {
    {"stories280K", "reference", 1}, {"stories280K", "cpu", 1}, {"stories280K", "cpu", 2},
    {"stories260K", "reference", 2}, {"stories260K", "cpu", 1}, {"stories260K", "cpu", 4},
    {"tinystories656K", "cpu", 2}, // outside the repository: the last
};

enum { GOLDENS = sizeof goldens / sizeof goldens[0], GOLDENS_IN_REPOSITORY = GOLDENS - 1 };

static bool external; // tests only the golden vectors outside the repository

static char *golden_path(const char *format, const char *model)
{
    char *name = mem_format(format, model);
    char *path = external ? external_data(name) : repository_data(name);
    free(name);
    return path;
}

START_TEST(golden_attention_gives_the_same_importance)
{
    const char *name = goldens[_i].model;
    char *cases_path = golden_path("golden/%s/cases.json", name);
    json_t *root = json_load_file(cases_path, 0, NULL), *golden = json_object_get(root, "attention");
    struct prompt_case c = {.prefill = {.keep_rate = 0.3, .chunk_tokens = 4, .paper_exact = true}, .rate = 300};
    c.n = (int)json_array_size(json_object_get(golden, "prompt_ids"));
    ck_assert_int_gt(c.n, 32);
    ck_assert_int_le(c.n, MAX_TOKENS);
    for (int j = 0; j < c.n; j++)
        c.tokens[j] = (int32_t)json_integer_value(json_array_get(json_object_get(golden, "prompt_ids"), (size_t)j));
    json_decref(root);
    char *path = golden_path("golden/%s/attention.npy", name);
    char *dir = golden_path("models/%s", name);
    struct model_config config;
    ck_assert_int_eq(model_config_read(dir, &config), STATUS_OK);
    config.n_eos = 0; // the vectors continue after an end token
    int heads = config.n_layers * config.n_heads;
    size_t count;
    float *attention = read_npy(path, &count); // [8][layers][heads][n]
    ck_assert_int_eq(count, 8 * heads * c.n);
    struct group *g = test_group_open(dir, goldens[_i].backend, "f32", "auto", goldens[_i].ranks);
    static const int look_aheads[] = {1, 4, 8}, windows[] = {1, 13};
    int n_exact = 0;
    for (int k = 0; k < 6; k++) {
        c.prefill.look_ahead = look_aheads[k % 3];
        c.prefill.pool_window = windows[k / 3];
        static struct scores got;
        score(g, &config, &c, 1, 0, 0, 0, &got);
        ck_assert_int_eq(got.steps, c.prefill.look_ahead);
        double importance[MAX_TOKENS];
        bool exact;
        golden_importance(attention, heads, c.n, c.prefill.look_ahead, c.prefill.pool_window, importance, &exact);
        for (int j = 0; j < c.n; j++) {
            ck_assert_double_ge(got.importance[j], importance[j] - GOLDEN_NEAR);
            if (exact) ck_assert_double_le(got.importance[j], importance[j] + GOLDEN_NEAR);
        }
        bool kept[MAX_TOKENS];
        struct select_policy policy = {.chunk_tokens = 4, .paper_exact = true};
        if (exact && slow_select(importance, c.n, &policy, c.rate, kept) > 2 * GOLDEN_NEAR) {
            ck_assert_mem_eq(got.kept, kept, (size_t)c.n * sizeof *kept);
            n_exact++;
        }
    }
    ck_assert_int_ge(n_exact, 1);
    test_group_close(g);
    free(attention);
    free(dir);
    free(path);
    free(cases_path);
}
END_TEST

SUITE("scorer")
{
    TIMEOUT(60);
    external = external_data_wanted(argc, argv);
    if (external) {
        LOOP(golden_attention_gives_the_same_importance, GOLDENS_IN_REPOSITORY, GOLDENS);
    } else {
        EACH(importance_and_kept_tokens_equal_the_slow_implementation, settings);
        LOOP(eos_ends_the_look_ahead_after_the_step_that_sampled_it, 0, 2);
        LOOP(attention_that_is_not_finite_is_an_error, 0, 2);
        LOOP(neighbours_chunks_and_budget_change_no_bit, 0, 6);
        LOOP(golden_attention_gives_the_same_importance, 0, GOLDENS_IN_REPOSITORY);
    }
}
