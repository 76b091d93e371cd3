// SPDX-License-Identifier: Apache-2.0
// The step protocol: the leader rings, broadcasts the batch as one array of integers, and every rank runs the model.
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/no_alloc.h"
#include "engine/doorbell.h"
#include "engine/watchdog.h"

enum { STEP_LIMIT_DEFAULT_MS = 120000 };

enum ring_kind { RING_STEP = 1, RING_CLOSE };

struct engine {
    struct comm *comm; // borrowed
    struct model *model;
    struct doorbell *bell; // NULL for a group of one, like the rest
    struct watchdog *dog;  // leader only
    int32_t *wire;         // the batch as broadcast, with room for the largest there can be
    size_t wire_ints;
};

// ---- the batch on the wire: eight counts, the draws (which want to lie at multiples of eight bytes), then the other
// arrays in the order of struct ragged_batch ----

enum { COUNTS = 8, DRAW_INTS = sizeof(struct draw) / sizeof(int32_t) };
enum { DRAW_NONE, DRAW_BESIDE, DRAW_ALONE }; // tokens beside logits, or alone

static size_t wire_size(const struct ragged_batch *b)
{
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    return COUNTS + 2 * rows + (seqs + 1) + seqs + seqs * (size_t)b->max_blocks + (size_t)b->n_logit_rows +
           (b->draw ? DRAW_INTS * (size_t)b->n_logit_rows : 0) + 2 * (size_t)b->n_probes;
}

// Of the largest batch that the model takes. Every row may be a probe.
static size_t wire_limit(const struct model_options *options, const struct model *model)
{
    size_t rows = (size_t)options->max_rows, seqs = (size_t)options->max_seqs;
    int context = options->max_context ? options->max_context : model_get_config(model)->max_context;
    size_t blocks = ((size_t)context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    return COUNTS + 2 * rows + (seqs + 1) + seqs + seqs * blocks + (1 + DRAW_INTS) * rows + 2 * rows;
}

static enum status check_wire(const struct engine *e, size_t ints)
{
    if (ints >= COUNTS && ints <= e->wire_ints) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "a batch of %zu integers: must be %d to %zu", ints, COUNTS, e->wire_ints);
}

static int32_t *put(int32_t *to, const int32_t *from, size_t n)
{
    if (n) memcpy(to, from, n * sizeof *to);
    return to + n;
}

static void wire_pack(int32_t *w, const struct ragged_batch *b)
{
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    int draws = !b->draw ? DRAW_NONE : b->tokens_alone ? DRAW_ALONE : DRAW_BESIDE;
    int32_t counts[COUNTS] = {b->n_rows,   b->n_seqs,       b->max_blocks, b->n_logit_rows,
                              b->n_probes, b->probe_window, draws};
    w = put(w, counts, COUNTS);
    if (b->draw) w = put(w, (const int32_t *)(const void *)b->draw, DRAW_INTS * (size_t)b->n_logit_rows);
    w = put(w, b->token, rows);
    w = put(w, b->position, rows);
    w = put(w, b->row_start, seqs + 1);
    w = put(w, b->kv_len, seqs);
    w = put(w, b->block_table, seqs * (size_t)b->max_blocks);
    w = put(w, b->logit_row, (size_t)b->n_logit_rows);
    w = put(w, b->probe_row, (size_t)b->n_probes);
    put(w, b->probe_keys, (size_t)b->n_probes);
}

static enum status wire_unpack(const int32_t *w, size_t ints, struct ragged_batch *b)
{
    *b = (struct ragged_batch){w[0], .n_seqs = w[1], .max_blocks = w[2], .n_logit_rows = w[3], .n_probes = w[4]};
    b->probe_window = w[5];
    if (w[6] != DRAW_NONE) b->draw = (const void *)(w + COUNTS);
    b->tokens_alone = w[6] == DRAW_ALONE;
    bool counted = w[6] <= DRAW_ALONE;
    for (int i = 0; i < COUNTS; i++)
        counted = counted && w[i] >= 0;
    if (!counted || wire_size(b) != ints)
        return status_fail(STATUS_INTERNAL, "a batch of %zu integers is no batch", ints);
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    b->token = w + COUNTS + (b->draw ? DRAW_INTS * b->n_logit_rows : 0);
    b->position = b->token + rows;
    b->row_start = b->position + rows;
    b->kv_len = b->row_start + seqs + 1;
    b->block_table = b->kv_len + seqs;
    b->logit_row = b->block_table + seqs * (size_t)b->max_blocks;
    b->probe_row = b->logit_row + b->n_logit_rows;
    b->probe_keys = b->probe_row + b->n_probes;
    return STATUS_OK;
}

// A rank that fails takes the group with it: its sentence must say which one and where.
static enum status name_rank(const struct comm *comm, enum status status)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return status_context(status, "rank %d on %s", comm->rank, host);
}

// ---- opening ----

// All ranks together: they have the same kind of backend, which `auto` chooses on each host by itself.
static enum status same_backend(const struct model *model, struct comm *comm)
{
    char leader[32] = "";
    if (comm->rank == 0) snprintf(leader, sizeof leader, "%s", model_backend(model));
    enum status status = comm->ops->broadcast(comm, leader, sizeof leader);
    if (status != STATUS_OK || strcmp(leader, model_backend(model)) == 0) return status;
    status = status_fail(STATUS_INVALID, "the backend here is %s, the leader's is %s: choose one with --backend",
                         model_backend(model), leader);
    return name_rank(comm, status);
}

// Every stage is the ranks' own affair until all have done it.
static enum status open_together(const struct model_options *options, struct comm *comm, struct doorbell *bell,
                                 struct model **model_p)
{
    struct model *model = NULL;
    enum status opened = model_open(options, comm, &model), status = doorbell_agree(bell, opened);
    if (status == STATUS_OK) status = doorbell_agree(bell, same_backend(model, comm));
    if (status == STATUS_OK) status = doorbell_agree(bell, model_join(model));
    if (status == STATUS_OK)
        *model_p = model;
    else if (opened == STATUS_OK)
        model_close(model);
    return status;
}

static enum status open_alone(const struct model_options *options, struct comm *comm, struct model **model_p)
{
    struct model *model;
    enum status status = model_open(options, comm, &model);
    if (status != STATUS_OK) return status;
    status = model_join(model);
    if (status == STATUS_OK)
        *model_p = model;
    else
        model_close(model);
    return status;
}

// ---- public ----

enum status engine_open(const struct model_options *options, struct comm *comm, struct engine **engine_p)
{
    struct doorbell *bell = NULL;
    enum status status = comm->size > 1 ? doorbell_open(comm, &bell) : STATUS_OK;
    if (status != STATUS_OK) return status;

    struct model_options mine = *options;
    mine.threads = group_threads(options->threads); // ranks of one host share its cores
    group_place(&mine.host_rank, &mine.host_ranks);
    struct model *model = NULL;
    status = bell ? open_together(&mine, comm, bell, &model) : open_alone(&mine, comm, &model);
    if (status != STATUS_OK) {
        if (bell) doorbell_close(bell);
        return status;
    }
    struct engine *e = mem_alloc(sizeof *e);
    *e = (struct engine){.comm = comm, .model = model, .bell = bell};
    if (bell) e->wire = mem_alloc_array(e->wire_ints = wire_limit(options, model), sizeof *e->wire);
    if (bell && comm->rank == 0) e->dog = watchdog_start(STEP_LIMIT_DEFAULT_MS);
    *engine_p = e;
    return STATUS_OK;
}

int engine_rank(const struct engine *e)
{
    return e->comm->rank;
}

struct model *engine_model(const struct engine *e)
{
    return e->model;
}

void engine_set_step_limit(struct engine *e, int limit_ms)
{
    if (e->dog) watchdog_set_limit(e->dog, limit_ms);
}

static enum status lead_step(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    if (!e->bell) return model_forward(e->model, batch, result);
    size_t ints = wire_size(batch);
    enum status status = check_wire(e, ints);
    if (status != STATUS_OK) return status;
    wire_pack(e->wire, batch);
    watchdog_enter(e->dog, batch->n_rows);
    status = doorbell_ring(e->bell, (struct ring){RING_STEP, (uint32_t)(ints * sizeof *e->wire)});
    if (status == STATUS_OK) status = e->comm->ops->broadcast(e->comm, e->wire, ints * sizeof *e->wire);
    if (status == STATUS_OK) status = model_forward(e->model, batch, result);
    watchdog_leave(e->dog);
    return status == STATUS_OK ? STATUS_OK : name_rank(e->comm, status);
}

enum status engine_forward(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    no_alloc_begin("engine_forward");
    enum status status = lead_step(e, batch, result);
    no_alloc_end();
    return status;
}

static enum status follow_step(struct engine *e, uint32_t size_bytes)
{
    size_t ints = size_bytes / sizeof *e->wire;
    enum status status = check_wire(e, ints);
    if (status == STATUS_OK) status = e->comm->ops->broadcast(e->comm, e->wire, size_bytes);
    struct ragged_batch batch;
    if (status == STATUS_OK) status = wire_unpack(e->wire, ints, &batch);
    struct forward_result result;
    if (status == STATUS_OK) status = model_forward(e->model, &batch, &result);
    return status;
}

enum status engine_follow(struct engine *e)
{
    for (;;) {
        struct ring ring;
        enum status status = doorbell_wait(e->bell, &ring);
        if (status != STATUS_OK) return status;
        if (ring.kind == RING_CLOSE) return STATUS_OK;
        no_alloc_begin("engine_follow");
        status = follow_step(e, ring.size_bytes);
        no_alloc_end();
        if (status != STATUS_OK) return name_rank(e->comm, status);
    }
}

void engine_close(struct engine *e)
{
    if (e->bell && e->comm->rank == 0) doorbell_ring(e->bell, (struct ring){RING_CLOSE, 0});
    if (e->dog) watchdog_stop(e->dog);
    if (e->bell) doorbell_close(e->bell);
    model_close(e->model);
    free(e->wire);
    free(e);
}
