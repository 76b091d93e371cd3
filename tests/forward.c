// SPDX-License-Identifier: Apache-2.0
// See forward.h.
#include "tests/forward.h"
#include "tests/comm_threads.h"

#include <check.h>
#include <pthread.h>
#include <string.h>

typedef enum status model_stage_fn(struct model *m);

struct job {
    pthread_t thread;
    struct model *model;
    model_stage_fn *stage; // stage of opening; NULL: a pass
    const struct ragged_batch *batch;
    struct forward_result result;
    enum status status;
    char message[256]; // status_message() of the job's thread
};

struct split {
    pthread_t thread;
    struct comm *comm;
    int stages;
    enum status status;
};

static void *rank_run(void *argument)
{
    struct job *job = argument;
    job->status = job->stage ? job->stage(job->model) : model_forward(job->model, job->batch, &job->result);
    if (job->status != STATUS_OK) {
        strncpy(job->message, status_message(), sizeof job->message - 1);
        job->message[sizeof job->message - 1] = 0;
    }
    return NULL;
}

static enum status ranks_run(struct ranks *r, model_stage_fn *stage, const struct ragged_batch *batch,
                             struct forward_result *result)
{
    struct job job[FORWARD_MAX_RANKS] = {0};
    for (int rank = r->size - 1; rank >= 0; rank--) {
        job[rank] = (struct job){.model = r->model[rank], .stage = stage, .batch = batch};
        if (rank)
            ck_assert_int_eq(pthread_create(&job[rank].thread, NULL, rank_run, &job[rank]), 0);
        else
            rank_run(&job[0]);
    }
    enum status status = job[0].status;
    for (int rank = 1; rank < r->size; rank++) {
        pthread_join(job[rank].thread, NULL);
        ck_assert_ptr_null(job[rank].result.logits);
        ck_assert_ptr_null(job[rank].result.importance);
        if (job[rank].status != STATUS_OK && status == STATUS_OK)
            status = status_fail(job[rank].status, "rank %d: %s", rank, job[rank].message);
    }
    *result = job[0].result;
    return status;
}

static void *rank_split(void *argument)
{
    struct split *split = argument;
    split->status = split->comm->ops->split(split->comm, split->stages);
    return NULL;
}

// Divides the ranks into pipeline stages.
static enum status ranks_split(struct ranks *r, int stages)
{
    struct split split[FORWARD_MAX_RANKS];
    enum status status = STATUS_OK;
    if (stages < 2 || r->size % stages != 0) return STATUS_OK; // model_open() refuses such numbers
    for (int rank = 0; rank < r->size; rank++) {
        split[rank] = (struct split){.comm = r->comm[rank], .stages = stages};
        ck_assert_int_eq(pthread_create(&split[rank].thread, NULL, rank_split, &split[rank]), 0);
    }
    for (int rank = 0; rank < r->size; rank++) {
        pthread_join(split[rank].thread, NULL);
        if (split[rank].status != STATUS_OK) status = split[rank].status;
    }
    return status;
}

enum status ranks_try_open(struct ranks *r, const struct model_options *options, int size)
{
    memset(r, 0, sizeof *r);
    enum status status = size == 1 ? comm_open_self(r->comm) : comm_open_threads(size, r->comm);
    ck_assert_int_eq(status, STATUS_OK);
    r->size = size;
    ck_assert_int_eq(ranks_split(r, options->stages), STATUS_OK);
    for (int rank = 0; rank < size; rank++) {
        status = model_open(options, r->comm[rank], &r->model[rank]);
        if (status != STATUS_OK) {
            ranks_close(r);
            return status;
        }
    }
    struct forward_result none;
    status = ranks_run(r, model_join, NULL, &none);
    if (status == STATUS_OK) status = ranks_run(r, model_warm_up, NULL, &none);
    if (status != STATUS_OK) ranks_close(r);
    return status;
}

void ranks_open(struct ranks *r, const struct model_options *options, int size)
{
    enum status status = ranks_try_open(r, options, size);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static void *rank_close(void *model)
{
    model_close(model);
    return NULL;
}

// Closes all ranks together, as processes do.
void ranks_close(struct ranks *r)
{
    pthread_t thread[FORWARD_MAX_RANKS];
    for (int rank = 0; rank < r->size; rank++)
        ck_assert_int_eq(pthread_create(&thread[rank], NULL, rank_close, r->model[rank]), 0);
    for (int rank = 0; rank < r->size; rank++) {
        pthread_join(thread[rank], NULL);
        r->comm[rank]->ops->close(r->comm[rank]);
    }
    r->size = 0;
}

enum status ranks_try_forward(struct ranks *r, const struct ragged_batch *batch, struct forward_result *result)
{
    return ranks_run(r, NULL, batch, result);
}

struct forward_result ranks_forward(struct ranks *r, const struct ragged_batch *batch)
{
    struct forward_result result;
    enum status status = ranks_try_forward(r, batch, &result);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    return result;
}

void forward_start(struct forward *f, int slots)
{
    memset(&f->batch, 0, sizeof f->batch);
    f->slots = slots;
    f->row_start[0] = 0;
    f->batch.token = f->token;
    f->batch.position = f->position;
    f->batch.row_start = f->row_start;
    f->batch.kv_len = f->kv_len;
    f->batch.block_table = f->block_table;
    f->batch.max_blocks = FORWARD_MAX_BLOCKS;
    f->batch.logit_row = f->logit_row;
    f->batch.importance_row = f->importance_row;
    f->batch.importance_keys = f->importance_keys;
    f->batch.smoothing_window = 1;
}

void forward_add(struct forward *f, int slot, int kv_len, const int32_t *token, const int32_t *position, int n,
                 enum logit_rows logits)
{
    struct ragged_batch *b = &f->batch;
    int s = b->n_seqs++;
    ck_assert_int_le(b->n_seqs, FORWARD_MAX_SEQS);
    ck_assert_int_le(b->n_rows + n, FORWARD_MAX_ROWS);
    ck_assert_int_le(kv_len + n, FORWARD_MAX_BLOCKS * KV_BLOCK_TOKENS);
    f->kv_len[s] = kv_len;
    for (int i = 0; i < FORWARD_MAX_BLOCKS; i++)
        f->block_table[s * FORWARD_MAX_BLOCKS + i] = i * f->slots + slot;
    for (int i = 0; i < n; i++) {
        int row = b->n_rows++;
        f->token[row] = token[i];
        f->position[row] = position ? position[i] : kv_len + i;
        if (logits == LOGITS_ALL || (logits == LOGITS_LAST && i == n - 1)) f->logit_row[b->n_logit_rows++] = row;
    }
    f->row_start[s + 1] = b->n_rows;
}

void forward_add_importance(struct forward *f, int keys, int window)
{
    f->importance_row[f->batch.n_importance_rows] = f->batch.n_rows - 1;
    f->importance_keys[f->batch.n_importance_rows++] = keys;
    f->batch.smoothing_window = window;
}

int32_t forward_argmax(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
