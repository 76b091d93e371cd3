// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_intake.h"

#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "router/front/http/http_call.h"
#include "router/front/http/json_body.h"
#include "router/front/http/json_images.h"
#include "router/front/request/intake.h"

struct body_job {
    struct intake_job job;       // first member: the pool's pointer to a job is cast to the message
    struct http_message message; // holds a reference to the exchange; owns its body
    char *tenant;                // owned
};

static void message_run(const struct http_message *message)
{
    struct http_exchange *x = message->x;
    http_ref(x);
    message->read(message);
    http_unref(x);
}

static void job_free(struct body_job *job)
{
    json_decref(job->message.body);
    http_unref(job->message.x);
    free(job->tenant);
    free(job);
}

static void job_run(struct intake_job *base, bool dropped)
{
    struct body_job *job = (struct body_job *)base;
    job->message.dropped = dropped;
    message_run(&job->message);
    job_free(job);
}

// Adds a job to the pool. Takes ownership of `body`, even on failure. `weight` is intake_job.bytes.
static enum status job_add(const struct http_message *message, json_t *body, size_t weight)
{
    struct body_job *job = mem_alloc(sizeof *job);
    const struct principal *p = ((struct http_call *)http_user(message->x))->principal;
    job->tenant = mem_string(p ? principal_tenant(p) : "");
    job->message = *message;
    job->message.at_once = false;
    job->message.body = body;
    job->job = (struct intake_job){.run = job_run, .tenant = job->tenant, .bytes = weight};
    http_ref(message->x);
    enum status status = intake_pool_add(message->front->pool, &job->job, message->owner);
    if (status != STATUS_OK) job_free(job);
    return status;
}

enum status http_message_read(const struct front *front, struct http_exchange *x, struct intake_owner *owner,
                              http_read_fn *read, void *user)
{
    TRY(intake_check_open(front));
    struct http_message message = {
        .x = x, .user = user, .arrived_us = clock_now_us(), .front = front, .owner = owner, .read = read};
    http_body(x, &message.size);
    message.at_once = message.size <= INTAKE_AT_ONCE_BYTES;
    if (!message.at_once) return job_add(&message, NULL, message.size);
    message_run(&message);
    return STATUS_OK;
}

enum status http_message_postpone(const struct http_message *message, json_t *body)
{
    return job_add(message, body, message->size + INTAKE_POSTPONED_BYTES);
}

enum status http_message_parse_as_sent(const struct http_message *message, json_t **body_p)
{
    size_t size;
    const char *bytes = http_body(message->x, &size);
    enum status status = json_body_parse(bytes, size, body_p);
    http_body_free(message->x);
    return status;
}

enum status http_message_parse(const struct http_message *message, json_t **body_p)
{
    if (message->body) {
        *body_p = json_incref(message->body);
        return STATUS_OK;
    }
    TRY(http_message_parse_as_sent(message, body_p));
    if (message->front->image_text) json_images_replace(*body_p, message->front->image_text);
    return STATUS_OK;
}
