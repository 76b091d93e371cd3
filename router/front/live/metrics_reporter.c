// SPDX-License-Identifier: Apache-2.0
#include "router/front/live/metrics_reporter.h"

#include <pthread.h>
#include <stdlib.h>

#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "router/front/request/intake_pool.h"

struct ask {
    enum metrics_format format;
    metrics_answer_fn answer;
    void *arg;
};

struct metrics_reporter {
    const struct front *front;
    pthread_t thread;
    pthread_mutex_t lock; // guards all members below
    pthread_cond_t changed;
    struct ask *asks;
    int n_asks, capacity;
    struct http_server_status http;
    struct batch_metrics batch;
    bool is_copied; // the core's thread has filled in `core`
    struct core_metrics core;
    bool stopping;
};

static void event_copy(struct core *c, void *arg, int64_t now_us)
{
    struct metrics_reporter *reporter = arg;
    pthread_mutex_lock(&reporter->lock);
    core_get_metrics(c, now_us, &reporter->core);
    reporter->is_copied = true;
    pthread_cond_signal(&reporter->changed);
    pthread_mutex_unlock(&reporter->lock);
}

static void snapshot_take(struct metrics_reporter *reporter, struct metrics_snapshot *snapshot)
{
    const struct front *front = reporter->front;
    *snapshot = (struct metrics_snapshot){
        .model_name = front->model_names[0],
        .event_backlog = loop_backlog(front->loop),
        .tokenise_waiting = intake_pool_waiting(front->pool),
        .log_lines_dropped = log_lines_dropped(),
        .connections_delayed = rpc_connections_delayed(),
    };
    for (int class = 0; class < PEER_CLASSES; class ++)
        snapshot->peers[class] = peer_budget_read((enum peer_class) class);
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++)
        snapshot->expected_nodes[role] = atomic_load(&front->expected_nodes[role]);
    for (int i = 0; i < front->n_certificates; i++)
        certificate_time_update(&front->certificates[i]);
    snapshot->certificates = front->certificates;
    snapshot->n_certificates = front->n_certificates;
    process_metrics_read(&snapshot->process);
    if (front->tracer) tracer_get_counts(front->tracer, &snapshot->trace);
    for (int status = 0; status < STATUS_COUNT && front->refusals; status++)
        snapshot->refused[status] = atomic_load(&front->refusals->counts[status]);
    if (front->compressed)
        snapshot->compressed =
            (struct compression_counts){.requests = atomic_load(&front->compressed->requests),
                                        .tokens_before = atomic_load(&front->compressed->tokens_before),
                                        .tokens_after = atomic_load(&front->compressed->tokens_after)};
    loop_post(front->loop, event_copy, reporter);
    pthread_mutex_lock(&reporter->lock);
    while (!reporter->is_copied)
        pthread_cond_wait(&reporter->changed, &reporter->lock);
    reporter->is_copied = false;
    snapshot->core = reporter->core;
    snapshot->http = reporter->http;
    snapshot->batch = reporter->batch;
    pthread_mutex_unlock(&reporter->lock);
}

// Answers the requests `asks` [n] from one snapshot, which is formatted once per format.
static void answer_all(struct metrics_reporter *reporter, const struct ask *asks, int n)
{
    struct metrics_snapshot snapshot;
    snapshot_take(reporter, &snapshot);
    for (enum metrics_format format = METRICS_TEXT; format <= METRICS_OPENMETRICS; format++) {
        char *text = NULL;
        size_t size = 0;
        for (int i = 0; i < n; i++) {
            if (asks[i].format != format) continue;
            if (!text) text = metrics_write(&snapshot, format, &size);
            asks[i].answer(asks[i].arg, format, text, size);
        }
        free(text);
    }
    core_metrics_fini(&snapshot.core);
}

static void *reporter_thread(void *arg)
{
    struct metrics_reporter *reporter = arg;
    pthread_mutex_lock(&reporter->lock);
    while (reporter->n_asks || !reporter->stopping) {
        if (!reporter->n_asks) {
            pthread_cond_wait(&reporter->changed, &reporter->lock);
            continue;
        }
        struct ask *asks = reporter->asks;
        int n = reporter->n_asks;
        reporter->asks = NULL;
        reporter->n_asks = reporter->capacity = 0;
        pthread_mutex_unlock(&reporter->lock);
        answer_all(reporter, asks, n);
        free(asks);
        pthread_mutex_lock(&reporter->lock);
    }
    pthread_mutex_unlock(&reporter->lock);
    return NULL;
}

struct metrics_reporter *metrics_reporter_open(const struct front *front)
{
    struct metrics_reporter *reporter = mem_alloc(sizeof *reporter);
    reporter->front = front;
    pthread_mutex_init(&reporter->lock, NULL);
    pthread_cond_init(&reporter->changed, NULL);
    thread_start(&reporter->thread, "metrics", reporter_thread, reporter);
    return reporter;
}

void metrics_reporter_ask(struct metrics_reporter *reporter, enum metrics_format format,
                          const struct http_server_status *http, const struct batch_metrics *batch,
                          metrics_answer_fn answer, void *arg)
{
    pthread_mutex_lock(&reporter->lock);
    reporter->http = *http;
    reporter->batch = *batch;
    MEM_GROW(reporter->asks, reporter->n_asks, reporter->capacity);
    reporter->asks[reporter->n_asks++] = (struct ask){format, answer, arg};
    pthread_cond_signal(&reporter->changed);
    pthread_mutex_unlock(&reporter->lock);
}

void metrics_reporter_close(struct metrics_reporter *reporter)
{
    if (!reporter) return;
    pthread_mutex_lock(&reporter->lock);
    reporter->stopping = true;
    pthread_cond_signal(&reporter->changed);
    pthread_mutex_unlock(&reporter->lock);
    pthread_join(reporter->thread, NULL);
    pthread_cond_destroy(&reporter->changed);
    pthread_mutex_destroy(&reporter->lock);
    free(reporter);
}
