// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_batching.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "router/front/http/http_service.h"

#define MEASURE_US 50000

// --- requests of batches

// Finds the principal of the key that created the batch.
static enum status principal_find(const struct front *front, const struct batch_start *start,
                                  struct principal **principal_p)
{
    if (!front->identity) return STATUS_OK;
    if (!*start->key_id)
        return status_fail(STATUS_UNAUTHENTICATED,
                           "the batch was created without an API key, which the router now needs");
    return identity_find(front->identity, start->key_id, start->tenant, principal_p);
}

static void *call_start(void *user, const struct batch_start *start, char request_id[BATCH_REQUEST_ID_ROOM])
{
    struct http_batching *batching = user;
    struct principal *principal = NULL;
    enum status status = principal_find(batching->service->front, start, &principal);
    struct http_call *call = http_call_create_local(principal);
    const struct http_local request = {"POST",         start->endpoint, start->body, start->body_bytes,
                                       start->respond, start->arg};
    snprintf(request_id, BATCH_REQUEST_ID_ROOM, "%.*s", BATCH_REQUEST_ID_ROOM - 1, call->request_id);
    struct http_exchange *x = http_local_open(batching->service->server, &request, call);
    if (status == STATUS_OK)
        http_local_start(x);
    else
        http_refuse(x, status);
    return x;
}

static void call_close(void *user, void *handle)
{
    http_local_close(handle);
}

static void event_measure(struct core *c, void *arg, int64_t now_us)
{
    struct http_batching *batching = arg;
    const struct core_load load = core_get_load(c);
    atomic_store(&batching->places, load.places);
    atomic_store(&batching->others, load.requests - load.background);
}

// Requests of batches start only while at least a quarter of the worker groups' places stays free of them and of other
// requests. They are ended only if less than an eighth stays free. So single requests come and go without an effect on
// the batches.
static struct batch_window call_window(void *user)
{
    struct http_batching *batching = user;
    const struct front *front = batching->service->front;
    int64_t now_us = clock_now_us();
    if (now_us - atomic_load(&batching->measured_us) > MEASURE_US) {
        atomic_store(&batching->measured_us, now_us);
        loop_post(front->loop, event_measure, batching);
    }
    int places = atomic_load(&batching->places), others = atomic_load(&batching->others);
    int most = places - places / 4 - others, end_above = places - places / 8 - others;
    if (most < 1) most = places > others; // one place is a window, too
    if (most > batching->window) most = batching->window;
    if (end_above < most) end_above = most;
    return (struct batch_window){atomic_load(&front->serving) ? most : 0, end_above};
}

// --- life

enum status http_batching_open(struct http_service *service, const struct http_batching_options *options,
                               struct http_batching **batching_p)
{
    struct http_batching *batching = mem_alloc(sizeof *batching);
    const struct batch_ops ops = {call_start, call_close, call_window, batching};
    batching->service = service;
    batching->window = options->window;
    enum status status = file_store_open(&options->store, &batching->store);
    if (status == STATUS_OK) status = batch_runner_open(batching->store, &ops, &batching->runner);
    if (status != STATUS_OK) {
        file_store_close(batching->store);
        free(batching);
        return status;
    }
    batching->disk = disk_pool_open();
    *batching_p = batching;
    return STATUS_OK;
}

void http_batching_stop(struct http_batching *batching)
{
    if (batching) batch_runner_stop(batching->runner);
}

void http_batching_close(struct http_batching *batching)
{
    if (!batching) return;
    disk_pool_close(batching->disk);
    batch_runner_close(batching->runner);
    file_store_close(batching->store);
    free(batching);
}

struct batch_metrics http_batching_metrics(struct http_batching *batching)
{
    _Static_assert((int)METRICS_BATCH_STATES == (int)BATCH_STATES, "the table of metrics names each state");
    if (!batching) return (struct batch_metrics){.files = 0};
    const struct file_store_use use = file_store_get_use(batching->store);
    const struct batch_runner_counts counts = batch_runner_count(batching->runner);
    const struct batch_counts batches = batch_table_count(batch_runner_table(batching->runner));
    struct batch_metrics metrics = {.files = use.files,
                                    .bytes = (int64_t)use.bytes,
                                    .in_flight = counts.in_flight,
                                    .completed = counts.completed,
                                    .failed = counts.failed,
                                    .retried = counts.retried};
    for (int i = 0; i < BATCH_STATES; i++)
        metrics.batches[i] = batches.batches[i];
    return metrics;
}

// --- handlers

struct http_batching *http_batching_of(struct http_exchange *x)
{
    struct http_batching *batching = ((struct http_service *)http_context(x))->batching;
    if (!batching) {
        http_fail_as(x, 501, "this router stores no files and batches: it needs the option --batch-dir");
        return NULL;
    }
    return http_admit_call(x) ? batching : NULL;
}

void http_batching_refuse(struct http_exchange *x, enum status status)
{
    switch (status) {
    case STATUS_NOT_FOUND: // a file or a batch: http_refuse() would name a model
        http_fail_as(x, 404, status_message());
        break;
    case STATUS_EXHAUSTED: http_fail_as(x, 507, status_message()); break;
    case STATUS_OUT_OF_RANGE: http_fail_as(x, 413, status_message()); break;
    default: http_refuse(x, status);
    }
}
