// SPDX-License-Identifier: Apache-2.0
#include "router/front/http_intake.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "router/front/http_call.h"
#include "router/front/intake.h"
#include "router/front/json_body.h"

struct body_job {
    struct intake_job job; // first: the pool's pointer is ours
    struct http_message message;
    http_read_fn *read;
    char *tenant; // owned
};

static void message_run(const struct http_message *message, http_read_fn *read)
{
    struct http_exchange *x = message->x;
    http_ref(x);
    read(message);
    http_unref(x);
}

static void job_free(struct body_job *job)
{
    http_unref(job->message.x);
    free(job->tenant);
    free(job);
}

static void job_run(struct intake_job *base, bool dropped)
{
    struct body_job *job = (struct body_job *)base;
    job->message.dropped = dropped;
    message_run(&job->message, job->read);
    job_free(job);
}

enum status http_message_read(const struct front *front, struct http_exchange *x, struct intake_owner *owner,
                              http_read_fn *read, void *user)
{
    TRY(intake_check_open(front));
    struct http_message message = {.x = x, .user = user, .arrived_us = clock_now_us()};
    size_t size;
    http_body(x, &size);
    if (size <= INTAKE_AT_ONCE_BYTES) {
        message_run(&message, read);
        return STATUS_OK;
    }
    struct body_job *job = mem_alloc(sizeof *job);
    const struct principal *p = ((struct http_call *)http_user(x))->principal;
    job->tenant = mem_string(p ? principal_tenant(p) : "");
    job->message = message;
    job->read = read;
    job->job = (struct intake_job){.run = job_run, .tenant = job->tenant, .bytes = size};
    http_ref(x);
    enum status status = intake_pool_add(front->pool, &job->job, owner);
    if (status != STATUS_OK) job_free(job);
    return status;
}

enum status http_message_parse(const struct http_message *message, json_t **body_p)
{
    size_t size;
    const char *bytes = http_body(message->x, &size);
    enum status status = json_body_parse(bytes, size, body_p);
    http_body_free(message->x);
    return status;
}
