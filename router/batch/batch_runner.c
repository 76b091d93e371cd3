// SPDX-License-Identifier: Apache-2.0
#include "router/batch/batch_runner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"
#include "router/batch/batch_job.h"
#include "router/batch/disk_file.h"

enum {
    JOBS_MAX = 16,             // batches that are worked on at one time
    TENANT_BATCHES_MAX = 1000, // batches of a tenant, finished ones included
    BATCHES_MAX = 10000,
    IN_FLIGHT_BYTES = 64 << 20, // bodies of requests in flight; a single one may be larger
    INPUT_BYTES = 200 << 20,    // largest input file
    RESERVE_BYTES = 64 << 10,   // kept on the disk for the end of a batch
};
#define TICK_US      100000  // the window is asked for again after this time
#define IDLE_US      1000000 // the same without unfinished batches: files may have expired
#define PAUSE_US     250000
#define PAUSE_MAX_US 8000000
#define EXPIRE_US    10000000

struct batch_call {
    struct batch_call *next;      // in the list of calls in flight
    struct batch_call *next_done; // in the queue of answered calls
    struct batch_runner *runner;
    struct batch_job *job;
    struct batch_next request;
    char request_id[BATCH_REQUEST_ID_ROOM];
    void *handle; // NULL: waits to be started again
    int http_status;
    struct bytes answer;
};

struct batch_command {
    struct batch_command *next;
    bool cancels;
    char *tenant, *key_id, *endpoint, *id; // id of the input file, or of the batch to cancel
    json_t *metadata;
    int64_t result_expires_s;
    batch_done_fn *done;
    void *arg;
};

struct batch_runner {
    struct file_store *store;
    struct batch_ops ops;
    struct batch_table table;
    pthread_t thread;
    pthread_mutex_t lock; // guards the members down to `counts`
    pthread_cond_t wake;
    bool stopping;
    struct batch_command *commands, **commands_end;
    struct batch_call *done, **done_end;
    struct batch_runner_counts counts;
    // The runner's thread only:
    struct batch_job *jobs; // in the order of their turns
    int n_jobs;
    struct batch_call *calls;
    int in_flight, n_waiting; // calls with and without a handle
    size_t in_flight_bytes;
    int64_t pause_us, paused_until_us; // no request is started before this time
    int64_t expired_us;                // time of the last search for expired files and batches
};

// --- calls

static void call_answered(void *arg, int http_status, const char *body, size_t size)
{
    struct batch_call *call = arg;
    struct batch_runner *runner = call->runner;
    call->http_status = http_status;
    bytes_add(&call->answer, body, size);
    pthread_mutex_lock(&runner->lock);
    call->next_done = NULL;
    *runner->done_end = call;
    runner->done_end = &call->next_done;
    pthread_cond_signal(&runner->wake);
    pthread_mutex_unlock(&runner->lock);
}

static void call_start(struct batch_runner *runner, struct batch_call *call)
{
    const struct batch *b = call->job->b;
    const struct batch_start start = {.tenant = b->tenant,
                                      .key_id = b->key_id,
                                      .endpoint = b->endpoint,
                                      .body = mem_string(call->request.request.body),
                                      .body_bytes = call->request.request.body_bytes,
                                      .respond = call_answered,
                                      .arg = call};
    runner->in_flight++;
    call->handle = runner->ops.start(runner->ops.user, &start, call->request_id);
}

static void call_stop(struct batch_runner *runner, struct batch_call *call)
{
    if (!call->handle) return;
    runner->ops.close(runner->ops.user, call->handle);
    call->handle = NULL;
    runner->in_flight--;
}

static void call_free(struct batch_runner *runner, struct batch_call *call)
{
    struct batch_call **link = &runner->calls;
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    runner->in_flight_bytes -= call->request.request.body_bytes;
    batch_request_fini(&call->request.request);
    bytes_free(&call->answer);
    free(call);
}

static void done_remove(struct batch_runner *runner, const struct batch_call *call)
{
    struct batch_call **link = &runner->done;
    while (*link && *link != call)
        link = &(*link)->next_done;
    if (!*link) return;
    *link = call->next_done;
    if (!*link) runner->done_end = link;
}

// Ends the calls of a job, or of all jobs if it is NULL. Answers that were not stored yet are dropped.
static void calls_end(struct batch_runner *runner, const struct batch_job *job)
{
    struct batch_call *next;
    for (struct batch_call *call = runner->calls; call; call = next) {
        next = call->next;
        if (job && call->job != job) continue;
        if (!call->handle) runner->n_waiting--;
        call_stop(runner, call);
        pthread_mutex_lock(&runner->lock);
        done_remove(runner, call);
        pthread_mutex_unlock(&runner->lock);
        call_free(runner, call);
    }
}

static bool may_succeed_later(int http_status)
{
    return http_status == 429 || http_status == 503;
}

static void pause_starts(struct batch_runner *runner)
{
    int64_t now_us = clock_now_us();
    if (runner->paused_until_us > now_us) return; // answers to requests that were started together
    runner->pause_us = runner->pause_us ? 2 * runner->pause_us : PAUSE_US;
    if (runner->pause_us > PAUSE_MAX_US) runner->pause_us = PAUSE_MAX_US;
    runner->paused_until_us = now_us + runner->pause_us;
}

static void count_answer(struct batch_runner *runner, int http_status)
{
    pthread_mutex_lock(&runner->lock);
    if (may_succeed_later(http_status))
        runner->counts.retried++;
    else if (http_status < 300)
        runner->counts.completed++;
    else
        runner->counts.failed++;
    pthread_mutex_unlock(&runner->lock);
}

static void call_finish(struct batch_runner *runner, struct batch_call *call)
{
    call_stop(runner, call);
    count_answer(runner, call->http_status);
    if (may_succeed_later(call->http_status)) {
        pause_starts(runner);
        bytes_free(&call->answer);
        runner->n_waiting++;
        return;
    }
    runner->pause_us = 0;
    batch_job_answer(call->job, &call->request, call->http_status, call->request_id, call->answer.data, call->answer.n);
    call_free(runner, call);
}

// --- starting requests

static bool may_start(struct batch_runner *runner)
{
    return runner->in_flight < runner->ops.window(runner->ops.user).most &&
           (!runner->in_flight || runner->in_flight_bytes < IN_FLIGHT_BYTES) &&
           clock_now_us() >= runner->paused_until_us;
}

static bool restart_one(struct batch_runner *runner)
{
    for (struct batch_call *call = runner->n_waiting ? runner->calls : NULL; call; call = call->next) {
        if (call->handle) continue;
        runner->n_waiting--;
        call_start(runner, call);
        return true;
    }
    return false;
}

static bool start_one(struct batch_runner *runner, struct batch_job *job)
{
    struct batch_next request;
    if (!batch_job_next(job, &request)) return false;
    struct batch_call *call = mem_alloc(sizeof *call);
    call->runner = runner;
    call->job = job;
    call->request = request;
    call->next = runner->calls;
    runner->calls = call;
    runner->in_flight_bytes += request.request.body_bytes;
    call_start(runner, call);
    return true;
}

// Ends the requests started last that the window no longer allows.
static void end_requests(struct batch_runner *runner)
{
    int end_above = runner->ops.window(runner->ops.user).end_above;
    for (struct batch_call *call = runner->calls; call && runner->in_flight > end_above; call = call->next) {
        if (!call->handle) continue;
        call_stop(runner, call);
        pthread_mutex_lock(&runner->lock);
        done_remove(runner, call);
        pthread_mutex_unlock(&runner->lock);
        bytes_free(&call->answer);
        runner->n_waiting++;
    }
}

// Starts a request of each job in turn until the window is full.
static void start_requests(struct batch_runner *runner)
{
    while (may_start(runner) && restart_one(runner)) {
    }
    for (bool started = true; started;) {
        started = false;
        for (struct batch_job *job = runner->jobs; job && may_start(runner); job = job->next)
            started |= start_one(runner, job);
    }
}

// --- jobs

static void job_add(struct batch_runner *runner, struct batch *b)
{
    struct batch_job **end = &runner->jobs;
    while (*end)
        end = &(*end)->next;
    *end = batch_job_create(&runner->table, runner->store, b);
    runner->n_jobs++;
}

static struct batch_job *job_find(struct batch_runner *runner, const struct batch *b)
{
    struct batch_job *job = runner->jobs;
    while (job && job->b != b)
        job = job->next;
    return job;
}

static int tenant_jobs(const struct batch_runner *runner, const char *tenant)
{
    int n = 0;
    for (const struct batch_job *job = runner->jobs; job; job = job->next)
        n += strcmp(job->b->tenant, tenant) == 0;
    return n;
}

// Adds jobs for unfinished batches. Batches of the tenant with the fewest jobs are first.
static void jobs_fill(struct batch_runner *runner)
{
    while (runner->n_jobs < JOBS_MAX) {
        struct batch *best = NULL;
        int fewest = 0;
        for (int i = 0; i < runner->table.n; i++) {
            struct batch *b = runner->table.list[i];
            if (batch_is_final(b) || job_find(runner, b)) continue;
            int n = tenant_jobs(runner, b->tenant);
            if (best && n >= fewest) continue;
            best = b;
            fewest = n;
        }
        if (!best) return;
        job_add(runner, best);
    }
}

static bool jobs_step(struct batch_runner *runner)
{
    bool worked = false;
    for (struct batch_job **link = &runner->jobs; *link;) {
        struct batch_job *job = *link;
        worked |= batch_job_step(job);
        if (batch_job_gave_up(job)) calls_end(runner, job);
        if (job->phase != PHASE_DONE) {
            link = &job->next;
            continue;
        }
        *link = job->next;
        runner->n_jobs--;
        batch_job_free(job);
    }
    return worked;
}

static void job_end(struct batch_runner *runner, struct batch *b, enum batch_state ending)
{
    struct batch_job *job = job_find(runner, b);
    if (!job) {
        job_add(runner, b);
        job = job_find(runner, b);
    }
    if (job->phase > PHASE_RUN) return;
    calls_end(runner, job);
    batch_job_end(job, ending);
}

static void expire(struct batch_runner *runner, int64_t now_us)
{
    int64_t now_s = (int64_t)time(NULL);
    if (runner->expired_us && now_us - runner->expired_us < EXPIRE_US) return;
    runner->expired_us = now_us;
    file_store_expire(runner->store, now_s);
    for (int i = 0; i < runner->table.n; i++) {
        struct batch *b = runner->table.list[i];
        if (!batch_is_final(b) && now_s >= b->expires_s) job_end(runner, b, BATCH_EXPIRED);
    }
    batch_table_expire(&runner->table, now_s);
}

// --- commands

static enum status check_input(struct batch_runner *runner, const struct batch_command *c)
{
    struct file_info info;
    enum status status = file_store_get(runner->store, c->tenant, c->id, &info);
    if (status == STATUS_NOT_FOUND)
        return status_fail(STATUS_NOT_FOUND, "input_file_id: there is no file '%.64s'", c->id);
    TRY(status);
    bool batch = strcmp(info.purpose, "batch") == 0, fits = info.bytes <= INPUT_BYTES;
    file_info_fini(&info);
    if (!batch) return status_fail(STATUS_INVALID, "input_file_id: the file's purpose must be batch");
    if (!fits) return status_fail(STATUS_INVALID, "input_file_id: the file has more than %d MiB", INPUT_BYTES >> 20);
    if (runner->table.n >= BATCHES_MAX || batch_table_count_tenant(&runner->table, c->tenant) >= TENANT_BATCHES_MAX)
        return status_fail(STATUS_EXHAUSTED, "too many batches: a tenant may have %d in 30 days, all tenants %d",
                           TENANT_BATCHES_MAX, BATCHES_MAX);
    return STATUS_OK;
}

// Keeps room on the disk, which is freed at the end of the batch.
static enum status reserve(const struct batch_runner *runner, const char *id)
{
    char *path = batch_table_path(&runner->table, id, ".reserve");
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int error = fd >= 0 ? posix_fallocate(fd, 0, RESERVE_BYTES) : errno;
    if (fd >= 0) close(fd);
    errno = error;
    enum status status = error ? disk_fail("the batch cannot be stored") : STATUS_OK;
    free(path);
    return status;
}

static struct batch *batch_of(const struct batch_command *c)
{
    struct timespec now;
    struct batch *b = mem_alloc(sizeof *b);
    clock_gettime(CLOCK_REALTIME, &now);
    batch_id_make(BATCH_ID_PREFIX, b->id);
    snprintf(b->input_id, sizeof b->input_id, "%s", c->id);
    for (int i = 0; i < BATCH_RESULTS; i++)
        batch_id_make(FILE_ID_PREFIX, b->result_ids[i]);
    b->tenant = mem_string(c->tenant);
    b->key_id = mem_string(c->key_id);
    b->endpoint = mem_string(c->endpoint);
    b->metadata = json_incref(c->metadata);
    b->result_expires_s = c->result_expires_s;
    b->created_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    b->expires_s = now.tv_sec + BATCH_WINDOW_S;
    b->ending = BATCH_COMPLETED;
    return b;
}

static void remove_files(const struct batch_runner *runner, const char *id)
{
    static const char *const suffixes[] = {".json", ".input", ".reserve"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char *path = batch_table_path(&runner->table, id, suffixes[i]);
        unlink(path);
        free(path);
    }
}

static enum status create(struct batch_runner *runner, const struct batch_command *c, json_t **object_p)
{
    TRY(check_input(runner, c));
    struct batch *b = batch_of(c);
    char *input = batch_table_path(&runner->table, b->id, ".input");
    enum status status = file_store_link(runner->store, c->tenant, c->id, input);
    free(input);
    if (status == STATUS_OK) status = reserve(runner, b->id);
    if (status == STATUS_OK) status = batch_table_save(&runner->table, b);
    if (status != STATUS_OK) {
        remove_files(runner, b->id);
        batch_free(b);
        return status;
    }
    batch_table_add(&runner->table, b);
    log_event(LOG_INFO, "batch_created", LOG_FIELD("batch", b->id), LOG_FIELD("tenant", b->tenant),
              LOG_FIELD("endpoint", b->endpoint), LOG_FIELD("input", b->input_id));
    *object_p = batch_to_json(b);
    return STATUS_OK;
}

static enum status cancel(struct batch_runner *runner, const struct batch_command *c, json_t **object_p)
{
    struct batch *b = batch_table_find(&runner->table, c->tenant, c->id);
    if (!b) return status_fail(STATUS_NOT_FOUND, "there is no batch '%.64s'", c->id);
    bool runs = b->state == BATCH_VALIDATING || b->state == BATCH_IN_PROGRESS;
    if (!runs && b->state != BATCH_CANCELLING && b->state != BATCH_CANCELLED)
        return status_fail(STATUS_EXISTS, "a batch that is %s cannot be cancelled", batch_state_name(b->state));
    if (runs) job_end(runner, b, BATCH_CANCELLED);
    *object_p = batch_to_json(b);
    return STATUS_OK;
}

static void command_free(struct batch_command *c)
{
    free(c->tenant);
    free(c->key_id);
    free(c->endpoint);
    free(c->id);
    json_decref(c->metadata);
    free(c);
}

static void command_run(struct batch_runner *runner, struct batch_command *c, bool stopping)
{
    json_t *object = NULL;
    enum status status = stopping     ? status_fail(STATUS_UNAVAILABLE, "the router is shutting down")
                         : c->cancels ? cancel(runner, c, &object)
                                      : create(runner, c, &object);
    c->done(c->arg, status, object);
    command_free(c);
}

static void command_add(struct batch_runner *runner, struct batch_command *c)
{
    pthread_mutex_lock(&runner->lock);
    bool stopping = runner->stopping;
    if (!stopping) {
        *runner->commands_end = c;
        runner->commands_end = &c->next;
        pthread_cond_signal(&runner->wake);
    }
    pthread_mutex_unlock(&runner->lock);
    if (stopping) command_run(runner, c, true);
}

void batch_runner_create(struct batch_runner *runner, const struct batch_params *params, batch_done_fn *done, void *arg)
{
    struct batch_command *c = mem_alloc(sizeof *c);
    *c = (struct batch_command){.tenant = mem_string(params->tenant),
                                .key_id = mem_string(params->key_id),
                                .endpoint = mem_string(params->endpoint),
                                .id = mem_string(params->input_id),
                                .metadata = json_deep_copy(params->metadata),
                                .result_expires_s = params->result_expires_s,
                                .done = done,
                                .arg = arg};
    command_add(runner, c);
}

void batch_runner_cancel(struct batch_runner *runner, const char *tenant, const char *id, batch_done_fn *done,
                         void *arg)
{
    struct batch_command *c = mem_alloc(sizeof *c);
    *c = (struct batch_command){
        .cancels = true, .tenant = mem_string(tenant), .id = mem_string(id), .done = done, .arg = arg};
    command_add(runner, c);
}

// --- the thread

// Takes what other threads have queued.
static void queues_take(struct batch_runner *runner, struct batch_command **commands_p, struct batch_call **done_p)
{
    *commands_p = runner->commands;
    *done_p = runner->done;
    runner->commands = NULL;
    runner->commands_end = &runner->commands;
    runner->done = NULL;
    runner->done_end = &runner->done;
}

// Answers that a command or a failure drops must not be in `done` any more, so they are handled first.
static void queues_run(struct batch_runner *runner, struct batch_command *commands, struct batch_call *done)
{
    for (struct batch_call *next; done; done = next) {
        next = done->next_done;
        call_finish(runner, done);
    }
    for (struct batch_command *next; commands; commands = next) {
        next = commands->next;
        command_run(runner, commands, false);
    }
}

static int64_t wait_until_us(const struct batch_runner *runner)
{
    int64_t now_us = clock_now_us(), tick_us = now_us + (runner->jobs ? TICK_US : IDLE_US);
    bool paused = runner->paused_until_us > now_us && runner->paused_until_us < tick_us;
    return paused ? runner->paused_until_us : tick_us;
}

static void *runner_run(void *arg)
{
    struct batch_runner *runner = arg;
    bool worked = false;
    pthread_mutex_lock(&runner->lock);
    while (!runner->stopping) {
        if (!worked && !runner->commands && !runner->done)
            monotonic_cond_wait(&runner->wake, &runner->lock, wait_until_us(runner));
        struct batch_command *commands;
        struct batch_call *done;
        queues_take(runner, &commands, &done);
        runner->counts.in_flight = runner->in_flight;
        pthread_mutex_unlock(&runner->lock);
        queues_run(runner, commands, done);
        expire(runner, clock_now_us());
        jobs_fill(runner);
        worked = jobs_step(runner);
        if (runner->jobs) {
            end_requests(runner);
            start_requests(runner);
        }
        pthread_mutex_lock(&runner->lock);
    }
    pthread_mutex_unlock(&runner->lock);
    return NULL;
}

enum status batch_runner_open(struct file_store *store, const struct batch_ops *ops, struct batch_runner **runner_p)
{
    struct batch_runner *runner = mem_alloc(sizeof *runner);
    enum status status = batch_table_open(&runner->table, file_store_folder(store));
    if (status != STATUS_OK) {
        free(runner);
        return status;
    }
    runner->store = store;
    runner->ops = *ops;
    runner->commands_end = &runner->commands;
    runner->done_end = &runner->done;
    pthread_mutex_init(&runner->lock, NULL);
    monotonic_cond_init(&runner->wake);
    thread_start(&runner->thread, "batches", runner_run, runner);
    *runner_p = runner;
    return STATUS_OK;
}

void batch_runner_stop(struct batch_runner *runner)
{
    pthread_mutex_lock(&runner->lock);
    bool stopped = runner->stopping;
    runner->stopping = true;
    pthread_cond_signal(&runner->wake);
    pthread_mutex_unlock(&runner->lock);
    if (stopped) return;
    pthread_join(runner->thread, NULL);
    struct batch_command *commands;
    struct batch_call *done;
    queues_take(runner, &commands, &done);
    for (struct batch_command *next; commands; commands = next) {
        next = commands->next;
        command_run(runner, commands, true);
    }
    for (struct batch_call *next; done; done = next) { // whole answers are worth storing
        next = done->next_done;
        call_finish(runner, done);
    }
    calls_end(runner, NULL);
    for (struct batch_job *job = runner->jobs, *next; job; job = next) {
        next = job->next;
        batch_job_free(job);
    }
}

void batch_runner_close(struct batch_runner *runner)
{
    if (!runner) return;
    batch_runner_stop(runner);
    batch_table_close(&runner->table);
    pthread_cond_destroy(&runner->wake);
    pthread_mutex_destroy(&runner->lock);
    free(runner);
}

struct batch_table *batch_runner_table(struct batch_runner *runner)
{
    return &runner->table;
}

struct batch_runner_counts batch_runner_count(struct batch_runner *runner)
{
    pthread_mutex_lock(&runner->lock);
    struct batch_runner_counts counts = runner->counts;
    pthread_mutex_unlock(&runner->lock);
    return counts;
}
