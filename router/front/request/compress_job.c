// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/compress_job.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/front/request/intake_pool.h"

struct compress_job {
    struct intake_job job; // first member: the pool's pointer to a job is cast
    const struct front *front;
    struct compression *c; // owned
    struct compress_goal goal;
    float *importance; // owned; NULL: everything is kept
    char *tenant;      // owned
    compress_send_fn *send;
    void *to;
};

static void job_end(struct compress_job *job, enum status status)
{
    job->send(job->to, job->c, status);
    compression_free(job->c);
    free(job->importance);
    free(job->tenant);
    free(job);
}

static void count_compressed(const struct front *front, const struct compression *c)
{
    struct compressed *counts = front->compressed;
    if (!counts) return;
    atomic_fetch_add_explicit(&counts->requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->tokens_before, (unsigned)c->tokens_before, memory_order_relaxed);
    atomic_fetch_add_explicit(&counts->tokens_after, (unsigned)c->tokens_after, memory_order_relaxed);
}

static void job_run(struct intake_job *base, bool dropped)
{
    struct compress_job *job = (struct compress_job *)base;
    if (dropped) {
        job_end(job, status_fail(STATUS_UNAVAILABLE, "the router is shutting down: try again"));
        return;
    }
    compression_apply(job->front, job->c, job->importance, &job->goal);
    count_compressed(job->front, job->c);
    job_end(job, STATUS_OK);
}

static const char *decided_by(const struct compression *c, const struct request *r)
{
    if (r->skip || r->rate_reason != RATE_FIXED) return request_rate_reason(r);
    return c->by_budget ? "token_budget" : "keep_rate";
}

void compress_finish(struct answer *a, const struct request *r, compress_send_fn *send, void *to)
{
    struct compress_job *job = mem_alloc(sizeof *job);
    struct compression *c = job->c = a->data;
    a->data = NULL;
    c->keep_rate = r->keep_rate;
    c->score_ms = (double)r->timing.score_us / 1e3;
    c->decided_by = decided_by(c, r);
    request_limit_format(r, c->limit);
    job->front = a->client->front;
    // A quality's keep rate is calibrated for prompts that keep pinned tokens in addition.
    job->goal = (struct compress_goal){.keep_rate = r->keep_rate, .beyond = r->rate_reason == RATE_QUALITY};
    if (r->importance) job->importance = mem_copy(r->importance, (size_t)r->spec.n_tokens * sizeof *r->importance);
    job->tenant = mem_string(r->spec.tenant ? r->spec.tenant : "");
    job->send = send;
    job->to = to;
    job->job = (struct intake_job){.run = job_run, .tenant = job->tenant, .bytes = compression_bytes(c)};
    enum status status = intake_pool_add(job->front->pool, &job->job, NULL);
    if (status != STATUS_OK) job_end(job, status);
}

void compress_release(struct answer *a)
{
    compression_free(a->data);
}
