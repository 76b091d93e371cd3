// SPDX-License-Identifier: Apache-2.0
// Runs the forward pass of a Llama-class model over a ragged batch, and opens the backend, weights and buffers. The
// stages of a layer are in layer.c. A pass allocates nothing.
#include "engine/model/llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/safetensors.h"
#include "lib/base/clock.h"
#include "lib/base/fnv.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

// ---- running the stages ---------------------------------------------------------------------------------------------

// Returns the rank of the next stage, or of the stage before, that has this rank's place in its stage.
static int next_rank(const struct model *m)
{
    return m->group->rank - m->comm->size;
}

static int previous_rank(const struct model *m)
{
    return m->group->rank + m->comm->size;
}

// Gets the residual stream of this stage: the embedding, or the rows of the stage before. In the embedding, each row
// has values on one rank and zeros on the other ranks, so the sum is exact.
static enum status enter_stage(struct model *m, int first_row, int rows)
{
    const struct backend_ops *ops = m->backend->ops;
    if (!m->stage.first)
        return m->group->ops->receive(m->group, previous_rank(m), ops->tensor_data(m->backend, m->residual),
                                      (size_t)rows * (size_t)m->config.hidden);
    TRY(ops->embed(m->backend, m->residual, m->embedding));
    return m->comm->size > 1 ? model_sum_rows(m, m->residual, first_row, rows) : STATUS_OK;
}

// Sends the residual stream to the next stage, in f32, so that the bits are those of one stage.
static enum status leave_stage(const struct forward_call *call)
{
    struct model *m = call->m;
    TRY(layers_finish(call));
    return m->group->ops->send(m->group, next_rank(m), m->backend->ops->tensor_data(m->backend, m->residual),
                               (size_t)call->batch->n_rows * (size_t)m->config.hidden);
}

enum status model_check_stages(struct model *m)
{
    float number = 1;
    if (!m->stage.first) TRY(m->group->ops->receive(m->group, previous_rank(m), &number, 1));
    return m->stage.last ? STATUS_OK : m->group->ops->send(m->group, next_rank(m), &number, 1);
}

// Runs a stage of the backend's pass. Stage 0 enters the pipeline stage; the stages of the layers follow. Every stage
// ends with a sum over ranks.
static enum status forward_stage(void *context, int i, int first_row, int rows)
{
    const struct forward_call *call = context;
    struct model *m = call->m;
    TRY(i == 0 ? enter_stage(m, first_row, rows) : layer_stage(call, i - 1, rows));
    if (m->comm->size > 1 && i) TRY(layer_sum(call, i - 1, first_row, rows));
    // Relaxed order is enough, because readers only look for a change.
    atomic_fetch_add_explicit(&m->group->progress, 1, memory_order_relaxed);
    return STATUS_OK;
}

static enum status forward_logits(void *context, int logit_rows)
{
    const struct forward_call *call = context;
    return call->m->stage.last ? layer_logits(call, logit_rows) : STATUS_OK;
}

// ---- results --------------------------------------------------------------------------------------------------------

// Copies the first `rows` rows of every rank's tensor, in rank order, into one tensor on rank 0.
static enum status gather_rows(struct model *m, struct tensor *mine, int rows, int columns, struct tensor *all)
{
    struct backend *b = m->backend;
    float *out = m->comm->rank == 0 ? b->ops->tensor_data(b, all) : NULL;
    return m->comm->ops->gather(m->comm, b->ops->tensor_data(b, mine), (size_t)rows * (size_t)columns, out);
}

// Makes the first `rows` rows of an F32 tensor readable on the host: in place, or in `copy` if the backend's memory is
// not host memory.
static enum status read_rows(struct model *m, struct tensor *t, int rows, float *copy, const float **rows_p)
{
    struct backend *b = m->backend;
    const bool in_place = b->ops->capabilities.host_memory;
    *rows_p = in_place ? b->ops->tensor_data(b, t) : copy;
    return in_place ? STATUS_OK : b->ops->read(b, t, rows, copy);
}

static enum status read_logits(struct model *m, int rows, const float **logits_p)
{
    int size = m->comm->size;
    if (size == 1) return read_rows(m, m->logits, rows, m->host_logits, logits_p);
    size_t share = (size_t)m->vocab_share, vocab = (size_t)m->config.vocab_size, n = (size_t)rows;
    const float *gathered; // [rank][row][share]
    TRY(read_rows(m, m->gathered, size * rows, m->host_gathered, &gathered));
    for (size_t first = 0, rank = 0; first < vocab; first += share, rank++)
        for (size_t row = 0; row < n; row++)
            memcpy(m->host_logits + row * vocab + first, gathered + (rank * n + row) * share,
                   (first + share < vocab ? share : vocab - first) * sizeof(float));
    *logits_p = m->host_logits;
    return STATUS_OK;
}

// Finds the best token of each row among the best tokens of `parts` ranks. Later ranks have larger ids, so among equal
// logits the lower id wins.
static enum status read_tokens(struct model *m, struct tensor *sampled, int parts, int rows)
{
    const float *found; // [part][row]
    TRY(read_rows(m, sampled, parts * rows, m->host_sampled, &found));
    for (int row = 0; row < rows; row++) {
        struct sampled_id best = {.id = -1}, token;
        for (int part = 0; part < parts; part++) {
            memcpy(&token, found + 2 * (part * rows + row), sizeof token);
            if (token.id >= 0 && (best.id < 0 || token.logit > best.logit)) best = token;
        }
        m->host_tokens[row] = best.id;
    }
    return STATUS_OK;
}

static bool all_greedy(const struct ragged_batch *batch)
{
    for (int l = 0; l < batch->n_logit_rows; l++)
        if (batch->sampling[l].inverse_temperature > 0) return false;
    return true;
}

// Samples tokens and reads logits as the batch asks. Each rank has the logits of its share of the vocabulary. The
// likeliest token is the best of the likeliest tokens of all shares. Any other sampling, and reading logits, needs the
// logits of all shares on rank 0. Only the logits that the batch wants are copied to host memory. If every other row
// samples the likeliest token, only the wanted logits are gathered too. So a request that needs logits costs other
// requests nothing.
static enum status finish_logits(struct model *m, const struct ragged_batch *batch, struct forward_result *result)
{
    struct backend *b = m->backend;
    const int rows = batch->n_logit_rows, size = m->comm->size;
    const bool here = m->comm->rank == 0, on_rank_0 = batch->sampling && (size == 1 || !all_greedy(batch));
    const int read = batch->sampling ? rows - batch->n_unread_rows : rows, gathered = on_rank_0 ? rows : read;
    if (size > 1 && gathered) TRY(gather_rows(m, m->logits, gathered, m->vocab_share, m->gathered));
    if (on_rank_0 && here)
        TRY(b->ops->sample(b, m->sampled, size > 1 ? m->gathered : m->logits, size, rows, 0, m->config.vocab_size,
                           true));
    if (batch->sampling && !on_rank_0) {
        TRY(b->ops->sample(b, m->sampled, m->logits, 1, rows, m->first_id, m->n_ids, false));
        TRY(gather_rows(m, m->sampled, rows, 2, m->gathered_sampled));
    }
    if (here && batch->sampling) {
        TRY(read_tokens(m, on_rank_0 ? m->sampled : m->gathered_sampled, on_rank_0 ? 1 : size, rows));
        result->tokens = m->host_tokens;
    }
    // After the first gather, the shares of the ranks are `gathered` rows apart, but read_logits() expects `read` rows.
    if (size > 1 && read && read < gathered) TRY(gather_rows(m, m->logits, read, m->vocab_share, m->gathered));
    return here && read ? read_logits(m, read, &result->logits) : STATUS_OK;
}

static enum status finish_importance(struct model *m, const struct ragged_batch *batch, struct forward_result *result)
{
    struct backend *b = m->backend;
    const bool in_place = b->ops->capabilities.host_memory;
    float *maxima = b->ops->importance_data(b);
    if (m->comm->size > 1) TRY(m->comm->ops->all_reduce_max(m->comm, maxima, (size_t)ragged_importance_size(batch)));
    if (m->comm->rank != 0) return STATUS_OK;
    result->importance = in_place ? maxima : m->host_importance;
    return in_place ? STATUS_OK : b->ops->importance_read(b, m->host_importance);
}

// ---- the forward pass -----------------------------------------------------------------------------------------------

// Checks the parts of the batch that the backend does not check itself.
static enum status check_batch(const struct model *m, const struct ragged_batch *batch)
{
    if (batch->n_rows < 1 || batch->n_rows > m->shape.max_rows)
        return status_fail(STATUS_INTERNAL, "ragged batch: %d rows; room for 1 to %d", batch->n_rows,
                           m->shape.max_rows);
    for (int t = 0; t < batch->n_rows; t++)
        if (batch->token[t] < 0 || batch->token[t] >= m->config.vocab_size || batch->position[t] < 0)
            return status_fail(STATUS_INTERNAL, "ragged batch: row %d has token %d of %d at position %d", t,
                               (int)batch->token[t], m->config.vocab_size, (int)batch->position[t]);
    if (batch->skipped_layers < 0 || batch->skipped_layers > m->config.n_layers)
        return status_fail(STATUS_INTERNAL, "ragged batch: %d of %d layers are left out", batch->skipped_layers,
                           m->config.n_layers);
    if (batch->n_logit_rows < 0 || batch->n_logit_rows > m->max_logit_rows)
        return status_fail(STATUS_INTERNAL, "ragged batch: %d logit rows; room for %d", batch->n_logit_rows,
                           m->max_logit_rows);
    for (int l = 0; l < batch->n_logit_rows; l++)
        if (batch->logit_row[l] < 0 || batch->logit_row[l] >= batch->n_rows)
            return status_fail(STATUS_INTERNAL, "ragged batch: logit row %d of %d", (int)batch->logit_row[l],
                               batch->n_rows);
    if (batch->n_importance_rows && m->stage.count > 1)
        return status_fail(STATUS_INTERNAL, "ragged batch: %d importance rows, which need a model of one stage",
                           batch->n_importance_rows);
    if (batch->sampling && !model_samples(m))
        return status_fail(STATUS_INTERNAL, "ragged batch: backend %s does not sample tokens", m->backend->ops->name);
    return STATUS_OK;
}

enum status model_forward(struct model *m, const struct ragged_batch *batch, struct forward_result *result)
{
    TRY(check_batch(m, batch));
    const struct forward_call call = {m, batch, layers_gather(m, batch)};
    const struct pass pass = {.batch = batch,
                              .context = (void *)&call,
                              .stage = forward_stage,
                              .logits = forward_logits,
                              .n_stages = 1 + layer_stages(m) * layers_of_pass(m, batch),
                              .max_logit_rows = m->max_logit_rows};
    TRY(m->backend->ops->run_pass(m->backend, &pass));
    *result = (struct forward_result){0};
    if (!m->stage.last) return leave_stage(&call);
    if (batch->n_logit_rows) TRY(finish_logits(m, batch, result));
    if (batch->n_importance_rows) TRY(finish_importance(m, batch, result));
    return m->comm->rank == 0 || !m->backend->ops->wait ? STATUS_OK : m->backend->ops->wait(m->backend);
}

enum status model_warm_up(struct model *m)
{
    struct backend *b = m->backend;
    if (b->ops->tune) {
        const struct ragged_batch batch = ragged_warm_up_batch();
        struct forward_result result;
        TRY(model_forward(m, &batch, &result));
        TRY(b->ops->tune(b));
    }
    model_log_memory(m);
    return STATUS_OK;
}

// ---- opening --------------------------------------------------------------------------------------------------------

// Allocates host memory for `columns` floats per logit row.
static float *make_host_rows(struct model *m, int columns)
{
    const size_t row_bytes = (size_t)columns * sizeof(float);
    m->logit_bytes += row_bytes;
    float *rows = mem_alloc_array((size_t)m->max_logit_rows, row_bytes);
    if (m->backend->ops->host_pin) m->backend->ops->host_pin(m->backend, rows, (size_t)m->max_logit_rows * row_bytes);
    return rows;
}

static enum status make_buffers(struct model *m)
{
    struct backend *b = m->backend;
    struct tensor_need list[MODEL_TENSORS_MAX];
    const int size = m->comm->size, n = model_list_tensors(m, model_samples(m), list);
    const bool copies = !b->ops->capabilities.host_memory;
    for (int i = 0; i < n; i++) {
        TRY(b->ops->tensor_create(b, list[i].kind, list[i].rows, list[i].columns, list[i].tensor_p));
        m->pass_bytes += list[i].bytes;
        if (list[i].of_logits)
            m->logit_bytes += list[i].bytes / (size_t)m->max_logit_rows;
        else
            m->row_bytes += list[i].bytes / (size_t)m->shape.max_rows;
    }
    if (b->ops->row_bytes) m->row_bytes += b->ops->row_bytes(b);
    if (m->comm->rank != 0 || !m->stage.last) return STATUS_OK;
    m->host_tokens = mem_alloc_array((size_t)m->max_logit_rows, sizeof *m->host_tokens);
    if (copies || size > 1) m->host_logits = make_host_rows(m, m->config.vocab_size);
    if (!copies) return STATUS_OK;
    if (size > 1) m->host_gathered = make_host_rows(m, size * m->vocab_share);
    if (model_samples(m)) m->host_sampled = make_host_rows(m, 2 * size);
    m->host_importance = mem_alloc_array((size_t)m->shape.max_seqs * (size_t)m->shape.max_context, sizeof(float));
    return STATUS_OK;
}

static enum status open_backend(const struct model_options *options, struct model *m)
{
    struct model_rope *rope = model_rope_create(&m->config, &m->shape.rope);
    if (m->shape.rope.still_layers) m->shape.rope.still_layers += m->stage.first_layer;
    // bf16 is for a backend or GPU that cannot multiply in the stored type.
    const bool may_convert = m->config.stored != STORED_PLAIN && strcmp(options->dtype, "auto") == 0;
    const enum dtype second = may_convert ? DTYPE_BF16 : m->dtype;
    enum status status =
        backend_open_either(options->backend, &m->shape, second, options->threads, &m->dtype, &m->backend);
    m->shape.rope = (struct rope_shape){0}; // the backend has its own copy
    free(rope);
    size_t total;
    if (status == STATUS_OK && m->backend->ops->memory)
        status = m->backend->ops->memory(m->backend, &total, &m->free_at_start);
    // Add the working memory that the backend has allocated already.
    if (m->backend && m->backend->ops->allocated)
        m->free_at_start += device_memory_total(m->backend->ops->allocated(m->backend));
    return status;
}

// Opens the file of packed weights if the options enable it. The file name distinguishes checkpoints, dtypes, ranks and
// stages in one folder. The key in the file tells whether the checkpoint has changed since the file was written.
static void open_saved(const struct model_options *o, const struct safetensors *st, struct model *m)
{
    bool wanted = o->packed_cache && strcmp(o->packed_cache, "off") != 0;
    if (!wanted || !st || !m->backend->ops->packed_cache_open) return;
    const char *folder = strcmp(o->packed_cache, "auto") == 0 ? o->dir : o->packed_cache;
    const struct pipeline_stage *s = &m->stage;
    char layers[48] = "";
    if (s->count > 1) snprintf(layers, sizeof layers, "-layers%dto%d", s->first_layer, s->first_layer + s->n_layers);
    m->packed_path = mem_format("%s/forepack-%016llx-%s-rank%dof%d%s", folder, (unsigned long long)m->fingerprint,
                                dtype_name(m->dtype), m->comm->rank, m->comm->size, layers);
    uint64_t part = (uint64_t)m->dtype << 40 | (uint64_t)m->comm->size << 20 | (uint64_t)m->comm->rank;
    part = layers[0] ? fnv1a(part, layers, strlen(layers)) : part;
    m->saved =
        m->backend->ops->packed_cache_open(m->backend, m->packed_path, safetensors_stamp(st, m->fingerprint ^ part));
}

// Ends of the phases of an opening: files and backend are open, weights are created, packed weights are saved.
struct open_times {
    int64_t opened_us, loaded_us, finished_us;
};

static enum status open_with(const struct model_options *options, const struct safetensors *st, struct model *m,
                             struct open_times *times)
{
    TRY(model_lay_out(options, st, m));
    m->fingerprint = model_hash(&m->config, st);
    enum status fits = model_fit_host(m, st);
    char *reason = fits == STATUS_OK ? NULL : mem_string(status_message());
    enum status status = open_backend(options, m);
    if (status == STATUS_OK && fits != STATUS_OK && m->backend->ops->capabilities.host_memory)
        status = status_fail(fits, "%s", reason); // a GPU has its own memory
    free(reason);
    TRY(status);
    if (m->stage.count > 1 && !m->backend->ops->capabilities.host_memory)
        return status_fail(STATUS_UNSUPPORTED,
                           "pp %d: backend %s cannot send rows to another stage yet: use --backend cpu, or "
                           "tensor-parallel ranks alone",
                           m->stage.count, m->backend->ops->name);
    if (m->backend->ops->allocated) TRY(model_count_memory(m, st, &m->planned));
    open_saved(options, st, m);
    m->progress = options->progress;
    times->opened_us = clock_now_us();
    status = model_load_weights(m, st);
    if (status != STATUS_OK) return status_context(status, "model %s", options->dir);
    times->loaded_us = clock_now_us();
    if (m->backend->ops->weights_finish) m->backend->ops->weights_finish(m->backend);
    times->finished_us = clock_now_us();
    return make_buffers(m);
}

// ---- opening and closing --------------------------------------------------------------------------------------------

enum status model_open(const struct model_options *options, struct comm *comm, struct model **model_p)
{
    struct model *m = mem_alloc(sizeof *m);
    struct safetensors *st = NULL;
    int64_t from_us = clock_now_us();
    m->group = comm;
    m->comm = m->host_comm = options->stages > 1 ? comm->part : comm;
    enum status status = model_config_read(options->dir, &m->config);
    if (status == STATUS_OK && !options->dummy) status = safetensors_open(options->dir, &st);
    struct open_times times = {0};
    if (status == STATUS_OK) status = open_with(options, st, m, &times);
    safetensors_close(st);
    if (status != STATUS_OK) {
        model_close(m);
        return status;
    }
    char eos[MODEL_MAX_EOS * 12] = "";
    for (int i = 0, n = 0; i < m->config.n_eos; i++)
        n += snprintf(eos + n, sizeof eos - (size_t)n, i ? ",%d" : "%d", m->config.eos_id[i]);
    log_event(LOG_INFO, "model_opened", LOG_FIELD("dir", options->dir),
              LOG_FIELD("architecture", m->config.architecture), LOG_FIELD("layers", m->config.n_layers),
              LOG_FIELD("stage", m->stage.index), LOG_FIELD("first_layer", m->stage.first_layer),
              LOG_FIELD("stage_layers", m->stage.n_layers), LOG_FIELD("backend", m->backend->ops->name),
              LOG_FIELD("dtype", dtype_name(m->dtype)), LOG_FIELD("kv_dtype", dtype_name(m->kv_dtype)),
              LOG_FIELD("rank", comm->rank), LOG_FIELD("ranks", comm->size), LOG_FIELD("weight_bytes", m->weight_bytes),
              LOG_FIELD("context_tokens", m->shape.max_context), LOG_FIELD("eos", eos),
              LOG_MS("open_ms", times.opened_us - from_us), LOG_MS("weights_ms", times.loaded_us - times.opened_us),
              LOG_MS("finish_ms", times.finished_us - times.loaded_us), LOG_MS("ms", clock_now_us() - from_us));
    *model_p = m;
    return STATUS_OK;
}

void model_close(struct model *m)
{
    if (!m) return;
    if (m->backend) m->backend->ops->close(m->backend);
    free(m->layers);
    free(m->host_logits);
    free(m->host_gathered);
    free(m->host_importance);
    free(m->host_sampled);
    free(m->host_tokens);
    free(m->packed_path);
    free(m);
}

const struct model_config *model_get_config(const struct model *m)
{
    return &m->config;
}

uint64_t model_fingerprint(const struct model *m)
{
    return m->fingerprint;
}

const char *model_backend(const struct model *m)
{
    return m->backend->ops->name;
}

const char *model_gpu_address(const struct model *m)
{
    return m->backend->ops->gpu_address ? m->backend->ops->gpu_address(m->backend) : NULL;
}

enum dtype model_dtype(const struct model *m)
{
    return m->dtype;
}

enum dtype model_kv_dtype(const struct model *m)
{
    return m->kv_dtype;
}

const struct backend_capabilities *model_capabilities(const struct model *m)
{
    return &m->backend->ops->capabilities;
}

bool model_samples(const struct model *m)
{
    return m->backend->ops->sample != NULL;
}

int model_host_threads(const struct model *m)
{
    return m->backend->ops->host_threads ? m->backend->ops->host_threads(m->backend) : 1;
}

struct host_cores model_host_cores(const struct model *m)
{
    return m->backend->ops->host_cores ? m->backend->ops->host_cores(m->backend) : (struct host_cores){"", ""};
}

const char *model_packed_path(const struct model *m)
{
    return m->packed_path;
}

uint64_t model_machine(const struct model *m)
{
    return m->backend->ops->machine ? m->backend->ops->machine(m->backend) : 0;
}

void model_run_on_host(struct model *m, void (*fn)(void *arg, int item, int thread), void *arg, int n_items)
{
    if (m->backend->ops->host_run) {
        m->backend->ops->host_run(m->backend, fn, arg, n_items);
        return;
    }
    for (int item = 0; item < n_items; item++)
        fn(arg, item, 0);
}

bool model_measures(const struct model *m)
{
    return m->backend->ops->measure != NULL;
}

enum status model_measure(struct model *m, int ms, double *gflops_p, double *gbytes_per_s_p)
{
    return m->backend->ops->measure(m->backend, ms, gflops_p, gbytes_per_s_p);
}

int model_kv_blocks(const struct model *m)
{
    return m->shape.n_kv_blocks;
}

size_t model_kv_bytes(const struct model *m)
{
    return m->kv_bytes;
}

size_t model_row_bytes(const struct model *m)
{
    return m->row_bytes;
}

int model_max_logit_rows(const struct model *m)
{
    return m->max_logit_rows;
}

double model_last_layer_share(const struct model *m)
{
    const struct model_config *c = &m->config;
    const double q = (double)c->n_heads * c->head_size, qkv = q + 2.0 * c->n_kv_heads * c->head_size;
    return m->last_residual ? qkv / (qkv + q + layer_mlp_matrices(&c->layer) * (double)c->intermediate) : 1;
}

size_t model_logit_bytes(const struct model *m)
{
    return m->logit_bytes;
}
