// SPDX-License-Identifier: Apache-2.0
#include "sim/engine.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "router/sched/view.h"
#include "sim/answers.h"
#include "sim/clock.h"
#include "sim/load.h"
#include "worker/scheduler.h"

struct entry {
    int32_t token, position;
    uint64_t content; // depends on this entry and all earlier ones, see answers.h
};

struct model {
    struct model_config config;
    int kv_blocks, max_logit_rows;
    int64_t sample_us;   // mean time to sample a row on the host
    int64_t sampling_us; // time to sample the last pass's rows
    int samplings;       // number of passes with rows sampled on the host
    bool samples;
};

struct engine {
    struct model model;
    double fixed_us, row_us, pair_us, noise, slowness;
    // The cost parameters give the times of passes if both are NULL.
    const struct measured_passes *measured;
    const struct pass_shape *computed;
    struct answer_rule rule;
    bool is_worker;
    struct random_source random; // draws the noise of passes
    bool fail_next;
    const char *fault;
    struct entry *entries; // [kv_blocks * KV_BLOCK_TOKENS]
    float *logits, *importance;
    int32_t *tokens; // [max_logit_rows]
    int64_t importance_capacity;
};

// Returns the configuration of the load's model, with the vocabulary of the simulation.
static struct model_config config_of(const struct scenario *scenario, const struct scenario_node *node)
{
    struct model_config config = {
        .n_layers = 4, .hidden = 256, .intermediate = 1024, .n_heads = 4, .n_kv_heads = 4, .head_size = 64};
    if (scenario->load) config = scenario->load->shape[node->role];
    config.vocab_size = (int)scenario->options.vocab;
    config.max_context = (int)node->context;
    config.bos_id = TOKEN_BOS;
    config.eos_id[0] = TOKEN_EOS;
    config.n_eos = 1;
    return config;
}

struct engine *sim_engine_create(const struct scenario *scenario, const struct scenario_node *node, uint64_t life)
{
    const struct scenario_options *options = &scenario->options;
    struct engine *e = mem_alloc(sizeof *e);
    e->model.config = config_of(scenario, node);
    e->model.kv_blocks = (int)node->kv_blocks;
    e->model.max_logit_rows = scheduler_logit_rows((int)node->max_seqs, (int)node->budget);
    e->model.samples = options->samples;
    e->model.sample_us = node->sample_us;
    e->fixed_us = (double)node->fixed_us;
    e->row_us = (double)node->row_ns / 1e3;
    e->pair_us = (double)node->pair_ps / 1e6;
    e->noise = (double)node->noise_percent / 100;
    e->slowness = 1;
    e->is_worker = node->role == NODE_WORKER;
    e->rule = answer_rule_of(options, !e->is_worker);
    if (scenario->load && measured_passes_known(&scenario->load->passes[node->role]))
        e->measured = &scenario->load->passes[node->role];
    if (scenario->load && scenario->load->computed[node->role]) e->computed = &scenario->load->model[node->role];
    e->random = random_stream((uint64_t)options->noise_seed, life);
    e->entries = mem_alloc_array((size_t)node->kv_blocks * KV_BLOCK_TOKENS, sizeof *e->entries);
    size_t logit_rows = (size_t)e->model.max_logit_rows;
    e->tokens = mem_alloc_array(logit_rows, sizeof *e->tokens);
    e->logits = mem_alloc_array(logit_rows * (size_t)options->vocab, sizeof *e->logits);
    return e;
}

void sim_engine_free(struct engine *e)
{
    if (!e) return;
    free(e->entries);
    free(e->tokens);
    free(e->logits);
    free(e->importance);
    free(e);
}

void sim_engine_set_slowness(struct engine *e, double factor)
{
    e->slowness = factor;
}

void sim_engine_fail_next(struct engine *e)
{
    e->fail_next = true;
}

bool sim_engine_is_linear(const struct engine *e)
{
    return !e->measured && !e->computed;
}

int64_t sim_engine_sampling_us(const struct engine *e)
{
    return e->model.sampling_us;
}

const char *sim_engine_fault(const struct engine *e)
{
    return e->fault;
}

// --- KV entries

static struct entry *entry_at(const struct engine *e, const struct ragged_batch *batch, int seq, int index)
{
    int block = index / KV_BLOCK_TOKENS;
    const int32_t *blocks = batch->block_table + (size_t)seq * (size_t)batch->max_blocks;
    if (block >= batch->max_blocks || blocks[block] < 0 || blocks[block] >= e->model.kv_blocks) return NULL;
    return &e->entries[(size_t)blocks[block] * KV_BLOCK_TOKENS + (size_t)(index % KV_BLOCK_TOKENS)];
}

static void write_rows(struct engine *e, const struct ragged_batch *batch, int seq)
{
    int index = batch->kv_len[seq];
    const struct entry *before = index ? entry_at(e, batch, seq, index - 1) : NULL;
    uint64_t content = before ? before->content : ANSWER_START;
    if (index && !before) e->fault = "a sequence has no KV block for its cached entries";
    for (int row = batch->row_start[seq]; row < batch->row_start[seq + 1]; row++, index++) {
        struct entry *entry = entry_at(e, batch, seq, index);
        if (!entry) {
            e->fault = "a row has no KV block for its entry";
            return;
        }
        content = answer_entry(content, batch->token[row], batch->position[row]);
        *entry = (struct entry){batch->token[row], batch->position[row], content};
    }
}

// Checks that every entry continues the entry before it: otherwise a block belongs to another sequence, or was
// overwritten. Checks all entries after a prefill and after every eighth token, otherwise only entries at the borders
// of blocks.
static void check_entries(struct engine *e, const struct ragged_batch *batch, int seq)
{
    int rows = batch->row_start[seq + 1] - batch->row_start[seq], n = batch->kv_len[seq] + rows;
    int step = rows > 1 || n % 8 == 0 ? 1 : KV_BLOCK_TOKENS;
    for (int i = 0; i < n; i += step) {
        const struct entry *entry = entry_at(e, batch, seq, i), *before = i ? entry_at(e, batch, seq, i - 1) : NULL;
        uint64_t content = before ? before->content : ANSWER_START;
        if (!entry || entry->content != answer_entry(content, entry->token, entry->position)) {
            e->fault = "KV entries were overwritten, or belong to another sequence";
            return;
        }
    }
}

static int sequence_of_row(const struct ragged_batch *batch, int row, int seq) // searches near `seq`
{
    while (batch->row_start[seq] > row)
        seq--;
    while (batch->row_start[seq + 1] <= row)
        seq++;
    return seq;
}

static const struct entry *entry_of_row(const struct engine *e, const struct ragged_batch *batch, int row, int seq)
{
    return entry_at(e, batch, seq, batch->kv_len[seq] + row - batch->row_start[seq]);
}

// --- results

static void logits_fill(float *logits, const struct answer_rule *rule, uint64_t content)
{
    int32_t token = answer_token(content, -1, rule);
    memset(logits, 0, (size_t)rule->vocab * sizeof *logits);
    logits[token] = ANSWER_LOGIT;
    logits[answer_second_token(content, token, rule->vocab)] = ANSWER_SECOND_LOGIT;
}

static void answer_tokens(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    int n_read = batch->n_logit_rows - batch->n_unread_rows, seq = 0;
    for (int l = 0; l < batch->n_logit_rows; l++) {
        seq = sequence_of_row(batch, batch->logit_row[l], seq);
        uint64_t content = entry_of_row(e, batch, batch->logit_row[l], seq)->content;
        const struct row_sampling *sampling = batch->sampling ? &batch->sampling[l] : NULL;
        bool greedy = !sampling || sampling->inverse_temperature == 0;
        e->tokens[l] = answer_token(content, greedy ? -1 : sampling->uniform, &e->rule);
        if (l < n_read) logits_fill(e->logits + (size_t)l * (size_t)e->rule.vocab, &e->rule, content);
    }
    if (batch->sampling) result->tokens = e->tokens;
    if (n_read) result->logits = e->logits;
}

static void answer_importances(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    int64_t size = ragged_importance_size(batch);
    if (size > e->importance_capacity) {
        e->importance_capacity = 2 * size;
        e->importance = mem_resize(e->importance, (size_t)e->importance_capacity, sizeof *e->importance);
    }
    float *out = e->importance;
    int seq = 0;
    for (int p = 0; p < batch->n_importance_rows; p++) {
        seq = sequence_of_row(batch, batch->importance_row[p], seq);
        uint64_t query = entry_of_row(e, batch, batch->importance_row[p], seq)->content;
        for (int key = 0; key < batch->importance_keys[p]; key++)
            *out++ = answer_importance(query, entry_at(e, batch, seq, key)->token, key);
    }
    result->importance = e->importance;
}

double sim_engine_pass_us(const struct engine *e, double rows, double pairs)
{
    return e->slowness * (e->fixed_us + e->row_us * rows + e->pair_us * pairs);
}

// Counts rows like the router: the last row of a sequence has a result, and its other rows are prompt rows.
static double measured_us(struct engine *e, const struct ragged_batch *batch, double pairs)
{
    bool has_prompts = e->is_worker && batch->n_rows > batch->n_logit_rows;
    double us = e->slowness * measured_pass_us(e->measured, has_prompts, batch->n_rows, pairs);
    return us * measured_pass_vary(e->measured, has_prompts, batch->n_rows, &e->random);
}

static void spend_time(struct engine *e, const struct ragged_batch *batch)
{
    double pairs = (double)ragged_attention_pairs(batch);
    double us = e->measured   ? measured_us(e, batch, pairs)
                : e->computed ? e->slowness * pass_cost_batch_us(e->computed, batch)
                              : sim_engine_pass_us(e, batch->n_rows, pairs);
    us *= (1 + e->noise * (2 * random_unit(&e->random) - 1));
    sim_clock_set(clock_now_us() + (us < 1 ? 1 : (int64_t)us));
}

// --- functions of the replaced engine

enum status engine_forward(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    *result = (struct forward_result){0};
    e->model.sampling_us = 0;
    spend_time(e, batch);
    if (e->fail_next) return status_fail(STATUS_INTERNAL, "the simulated device failed");
    for (int seq = 0; seq < batch->n_seqs; seq++)
        write_rows(e, batch, seq);
    for (int seq = 0; seq < batch->n_seqs && !e->fault && !e->computed; seq++) // plans would spend most time here
        check_entries(e, batch, seq);
    if (e->fault) return status_fail(STATUS_INTERNAL, "%s", e->fault);
    if (batch->n_logit_rows) answer_tokens(e, batch, result);
    if (batch->n_importance_rows) answer_importances(e, batch, result);
    return STATUS_OK;
}

void engine_sampling_begin(struct engine *e)
{
    (void)e;
}

void engine_sampling_end(struct engine *e)
{
    (void)e;
}

struct model *engine_model(const struct engine *e)
{
    return (struct model *)&e->model;
}

const struct model_config *model_get_config(const struct model *m)
{
    return &m->config;
}

int model_max_logit_rows(const struct model *m)
{
    return m->max_logit_rows;
}

int model_kv_blocks(const struct model *m)
{
    return m->kv_blocks;
}

int model_host_threads(const struct model *m)
{
    (void)m;
    return 1;
}

void model_run_on_host(struct model *m, void (*fn)(void *arg, int item, int thread), void *arg, int n_items)
{
    for (int item = 0; item < n_items; item++)
        fn(arg, item, 0);
    m->sampling_us = n_items * m->sample_us * (2 + m->samplings++ % 5) / 4; // the time varies
    sim_clock_set(clock_now_us() + m->sampling_us);
}

bool model_samples(const struct model *m)
{
    return m->samples;
}
