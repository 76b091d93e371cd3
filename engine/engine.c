// SPDX-License-Identifier: Apache-2.0
// The step protocol: the leader rings, broadcasts the batch as one array of integers, and every rank runs the model.
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "engine/doorbell.h"
#include "engine/roll.h"
#include "engine/watchdog.h"

// Followers let the leader end the group, so that one rank says what there is to say.
enum { STEP_LIMIT_DEFAULT_MS = 120000, FOLLOWERS_LATER_MS = 10000 };

enum ring_kind { RING_STEP = 1, RING_CLOSE };

struct engine {
    struct comm *comm; // borrowed
    struct model *model;
    struct doorbell *bell; // NULL for a group of one, like the rest
    struct roll *roll;
    struct watchdog *dog;
    int limit_ms;  // of a step
    int32_t *wire; // the batch as broadcast, with room for the largest there can be
    size_t wire_ints;
};

// ---- the batch on the wire: eight counts, the draws (which want to lie at multiples of eight bytes), then the other
// arrays in the order of struct ragged_batch ----

enum { COUNTS = 8, DRAW_INTS = sizeof(struct row_sampling) / sizeof(int32_t) };
enum { DRAW_NONE, DRAW_BESIDE, DRAW_ALONE }; // tokens beside logits, or alone

static size_t wire_size(const struct ragged_batch *b)
{
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    return COUNTS + 2 * rows + (seqs + 1) + seqs + seqs * (size_t)b->max_blocks + (size_t)b->n_logit_rows +
           (b->sampling ? DRAW_INTS * (size_t)b->n_logit_rows : 0) + 2 * (size_t)b->n_importance_rows;
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
    int draws = !b->sampling ? DRAW_NONE : b->tokens_only ? DRAW_ALONE : DRAW_BESIDE;
    int32_t counts[COUNTS] = {b->n_rows,           b->n_seqs, b->max_blocks, b->n_logit_rows, b->n_importance_rows,
                              b->smoothing_window, draws};
    w = put(w, counts, COUNTS);
    if (b->sampling) w = put(w, (const int32_t *)(const void *)b->sampling, DRAW_INTS * (size_t)b->n_logit_rows);
    w = put(w, b->token, rows);
    w = put(w, b->position, rows);
    w = put(w, b->row_start, seqs + 1);
    w = put(w, b->kv_len, seqs);
    w = put(w, b->block_table, seqs * (size_t)b->max_blocks);
    w = put(w, b->logit_row, (size_t)b->n_logit_rows);
    w = put(w, b->importance_row, (size_t)b->n_importance_rows);
    put(w, b->importance_keys, (size_t)b->n_importance_rows);
}

static enum status wire_unpack(const int32_t *w, size_t ints, struct ragged_batch *b)
{
    *b = (struct ragged_batch){w[0], .n_seqs = w[1], .max_blocks = w[2], .n_logit_rows = w[3],
                               .n_importance_rows = w[4]};
    b->smoothing_window = w[5];
    if (w[6] != DRAW_NONE) b->sampling = (const void *)(w + COUNTS);
    b->tokens_only = w[6] == DRAW_ALONE;
    bool counted = w[6] <= DRAW_ALONE;
    for (int i = 0; i < COUNTS; i++)
        counted = counted && w[i] >= 0;
    if (!counted || wire_size(b) != ints)
        return status_fail(STATUS_INTERNAL, "a batch of %zu integers is no batch", ints);
    size_t rows = (size_t)b->n_rows, seqs = (size_t)b->n_seqs;
    b->token = w + COUNTS + (b->sampling ? DRAW_INTS * b->n_logit_rows : 0);
    b->position = b->token + rows;
    b->row_start = b->position + rows;
    b->kv_len = b->row_start + seqs + 1;
    b->block_table = b->kv_len + seqs;
    b->logit_row = b->block_table + seqs * (size_t)b->max_blocks;
    b->importance_row = b->logit_row + b->n_logit_rows;
    b->importance_keys = b->importance_row + b->n_importance_rows;
    return STATUS_OK;
}

// A rank that fails takes the group with it: its sentence must say which one and where.
static enum status name_rank(const struct comm *comm, enum status status)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return status_context(status, "rank %d on %s", comm->rank, host);
}

// ---- ranks that hang ----

// On every rank; in time for the ranks that wait for their GPUs to say what they saw before the leader ends the group.
static void set_limit(struct engine *e, int limit_ms)
{
    if (!e->bell || e->limit_ms == limit_ms) return;
    e->limit_ms = limit_ms;
    e->comm->limit_ms = limit_ms / 6 * 5;
    watchdog_set_timeout(e->dog, limit_ms && e->comm->rank ? limit_ms + FOLLOWERS_LATER_MS : limit_ms);
}

// What the working thread does between these two it does with the other ranks. 0 rows: it opens.
static void begin_together(struct engine *e, int rows)
{
    if (!e->bell) return;
    roll_enter(e->roll);
    watchdog_enter(e->dog, rows);
}

static void end_together(struct engine *e)
{
    if (!e->bell) return;
    watchdog_leave(e->dog);
    roll_leave(e->roll);
}

// A rank that gave up waiting for others says which of them are missing.
static enum status name_missing(struct engine *e, enum status status, enum roll_result *result_p)
{
    *result_p = ROLL_COMPLETE;
    if (status == STATUS_OK || !e->bell || !e->comm->waits) return status;
    char why[ROLL_SENTENCE_MAX];
    *result_p = roll_call(e->roll, ROLL_PATIENCE_MS, why);
    return status_fail(status, "%s: %s", status_message(), why);
}

static enum status step_failed(struct engine *e, enum status status)
{
    enum roll_result result;
    return name_rank(e->comm, name_missing(e, status, &result));
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

// With a rank that does not come there is nothing to be agreed on.
static enum status join(struct engine *e)
{
    enum roll_result result;
    enum status status = name_missing(e, model_join(e->model), &result);
    if (result == ROLL_COMPLETE) return status;
    log_error("rank %d: %s; ending the group", e->comm->rank, status_message());
    group_abort(e->comm, 1);
}

static enum status agree(struct engine *e, enum status mine)
{
    if (!e->bell) return mine;
    e->comm->waits = true;
    enum status status = doorbell_agree(e->bell, mine);
    e->comm->waits = false;
    return status;
}

// Every stage is the ranks' own affair until all have done it.
static enum status open_model(struct engine *e, const struct model_options *options)
{
    enum status status = agree(e, model_open(options, e->comm, &e->model));
    if (status == STATUS_OK && e->bell) status = agree(e, same_backend(e->model, e->comm));
    if (status == STATUS_OK) status = agree(e, join(e));
    return status;
}

// How a group of several keeps together.
static enum status meet(struct engine *e)
{
    enum status status = doorbell_open(e->comm, &e->bell);
    if (status != STATUS_OK) return status;
    status = doorbell_agree(e->bell, roll_open(e->comm, &e->roll));
    if (status != STATUS_OK) return status;
    e->dog = watchdog_start(e->roll, 0);
    set_limit(e, STEP_LIMIT_DEFAULT_MS);
    return STATUS_OK;
}

static void engine_free(struct engine *e)
{
    if (e->dog) watchdog_stop(e->dog);
    if (e->roll) roll_close(e->roll);
    if (e->bell) doorbell_close(e->bell);
    if (e->model) model_close(e->model);
    free(e->wire);
    free(e);
}

// ---- public ----

enum status engine_open(const struct model_options *options, struct comm *comm, struct engine **engine_p)
{
    struct model_options mine = *options;
    mine.threads = group_threads(options->threads); // ranks of one host share its cores
    group_place(&mine.host_rank, &mine.host_ranks);
    struct engine *e = mem_alloc(sizeof *e);
    e->comm = comm;
    enum status status = comm->size > 1 ? meet(e) : STATUS_OK;
    if (status == STATUS_OK) {
        begin_together(e, 0);
        status = open_model(e, &mine);
        end_together(e);
    }
    if (status != STATUS_OK) {
        engine_free(e);
        return status;
    }
    if (e->bell) e->wire = mem_alloc_array(e->wire_ints = wire_limit(options, e->model), sizeof *e->wire);
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

void engine_set_step_timeout(struct engine *e, int limit_ms)
{
    set_limit(e, limit_ms);
}

static enum status lead_step(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    if (!e->bell) return model_forward(e->model, batch, result);
    size_t ints = wire_size(batch);
    enum status status = check_wire(e, ints);
    if (status != STATUS_OK) return status;
    wire_pack(e->wire, batch);
    status = doorbell_ring(e->bell, (struct ring){RING_STEP, (uint32_t)(ints * sizeof *e->wire), e->limit_ms});
    if (status == STATUS_OK) status = e->comm->ops->broadcast(e->comm, e->wire, ints * sizeof *e->wire);
    if (status == STATUS_OK) status = model_forward(e->model, batch, result);
    return status;
}

enum status engine_forward(struct engine *e, const struct ragged_batch *batch, struct forward_result *result)
{
    no_alloc_begin("engine_forward");
    begin_together(e, batch->n_rows);
    enum status status = lead_step(e, batch, result);
    end_together(e);
    no_alloc_end();
    return status == STATUS_OK || !e->bell ? status : step_failed(e, status);
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
        watchdog_enter(e->dog, 0); // a leader that hangs between two steps rings no more
        enum status status = doorbell_wait(e->bell, &ring);
        watchdog_leave(e->dog);
        if (status != STATUS_OK) return status;
        if (ring.kind == RING_CLOSE) return STATUS_OK;
        set_limit(e, ring.limit_ms);
        no_alloc_begin("engine_follow");
        begin_together(e, 1);
        status = follow_step(e, ring.size_bytes);
        end_together(e);
        no_alloc_end();
        if (status != STATUS_OK) return step_failed(e, status);
    }
}

void engine_close(struct engine *e)
{
    if (e->bell && e->comm->rank == 0) doorbell_ring(e->bell, (struct ring){.kind = RING_CLOSE});
    engine_free(e);
}
