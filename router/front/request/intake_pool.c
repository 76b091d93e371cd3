// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/intake_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "lib/base/hash.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "router/core/tenant_share.h"

enum { BUCKETS = 1024 };
enum lane_kind { LANE_SHORT, LANE_LONG, LANE_KINDS };

// ---- heaps, smallest key first

struct heap {
    struct intake_key **entries; // owned; the entries are members of jobs and lanes
    int n, capacity;
};

static bool key_before(const struct intake_key *a, const struct intake_key *b)
{
    return a->key != b->key ? a->key < b->key : a->number < b->number;
}

static void heap_place(struct heap *heap, struct intake_key *entry, int place)
{
    heap->entries[place] = entry;
    entry->place = place;
}

static void heap_sift(struct heap *heap, struct intake_key *entry)
{
    int place = entry->place;
    for (int up; place > 0 && key_before(entry, heap->entries[up = (place - 1) / 2]); place = up)
        heap_place(heap, heap->entries[up], place);
    for (int down; (down = 2 * place + 1) < heap->n; place = down) {
        if (down + 1 < heap->n && key_before(heap->entries[down + 1], heap->entries[down])) down++;
        if (!key_before(heap->entries[down], entry)) break;
        heap_place(heap, heap->entries[down], place);
    }
    heap_place(heap, entry, place);
}

static void heap_add(struct heap *heap, struct intake_key *entry)
{
    MEM_GROW(heap->entries, heap->n, heap->capacity);
    entry->place = heap->n++;
    heap_sift(heap, entry);
}

static void heap_remove(struct heap *heap, struct intake_key *entry)
{
    struct intake_key *last = heap->entries[--heap->n];
    if (last != entry) {
        last->place = entry->place;
        heap_sift(heap, last);
    }
    entry->place = -1;
}

// ---- the pool

// A tenant's waiting jobs of one kind. `key.key` is the lane's counter: the bytes of the jobs that have started.
struct intake_lane {
    struct intake_key key; // first member: entries of intake_pool.lanes are cast to lanes
    struct pool_tenant *tenant;
    enum lane_kind kind;
    struct heap jobs;
};

// A tenant with waiting jobs.
struct pool_tenant {
    struct pool_tenant *next; // next tenant in the same bucket
    char *name;
    int jobs;     // number of waiting jobs
    size_t bytes; // bytes of the waiting jobs
    struct intake_lane lanes[LANE_KINDS];
};

struct pool_thread {
    struct intake_pool *pool;
    bool short_only;
    pthread_t thread;
};

struct intake_pool {
    struct intake_pool_options options; // the mutex guards max_jobs and tenant_share_percent
    struct hash_key hash_key;
    struct pool_thread *threads; // [options.threads]

    pthread_mutex_t mutex; // guards all members below
    pthread_cond_t any, short_job;
    bool short_waits; // the thread for short jobs waits for a job
    bool closing;
    bool turn; // pools of one thread: true if a short job is next
    int waiting, running;
    size_t waiting_bytes, running_bytes;
    size_t running_long_bytes; // part of running_bytes that belongs to long jobs
    uint64_t last_number;
    struct heap lanes[LANE_KINDS]; // lanes with jobs
    uint64_t floor[LANE_KINDS];    // initial counter of a lane while no lane of its kind has jobs
    struct pool_tenant *tenants[BUCKETS];
};

// ---- tenants and lanes; the caller of the static functions holds the mutex

static struct pool_tenant **tenant_find(struct intake_pool *pool, const char *name)
{
    struct pool_tenant **link = &pool->tenants[hash_text(&pool->hash_key, name) % BUCKETS];
    while (*link && strcmp((*link)->name, name) != 0)
        link = &(*link)->next;
    return link;
}

static struct pool_tenant *tenant_create(struct intake_pool *pool, const char *name)
{
    struct pool_tenant *tenant = mem_alloc(sizeof *tenant);
    tenant->name = mem_string(name);
    for (enum lane_kind kind = LANE_SHORT; kind < LANE_KINDS; kind++) {
        uint64_t number = ++pool->last_number;
        tenant->lanes[kind] =
            (struct intake_lane){.key = {.number = number, .place = -1}, .tenant = tenant, .kind = kind};
    }
    return tenant;
}

static void tenant_free(struct intake_pool *pool, struct pool_tenant *tenant)
{
    *tenant_find(pool, tenant->name) = tenant->next;
    for (enum lane_kind kind = LANE_SHORT; kind < LANE_KINDS; kind++)
        free(tenant->lanes[kind].jobs.entries);
    free(tenant->name);
    free(tenant);
}

static void lane_add(struct intake_pool *pool, struct intake_lane *lane, struct intake_job *job)
{
    struct heap *lanes = &pool->lanes[lane->kind];
    if (lane->jobs.n == 0) {
        uint64_t start = lanes->n ? lanes->entries[0]->key : pool->floor[lane->kind];
        if (start > lane->key.key) lane->key.key = start;
        heap_add(lanes, &lane->key);
    }
    job->lane = lane;
    job->key = (struct intake_key){.key = lane->key.key + job->bytes, .number = ++pool->last_number};
    heap_add(&lane->jobs, &job->key);
    lane->tenant->jobs++;
    lane->tenant->bytes += job->bytes;
    pool->waiting++;
    pool->waiting_bytes += job->bytes;
}

static void lane_remove(struct intake_pool *pool, struct intake_job *job)
{
    struct intake_lane *lane = job->lane;
    struct pool_tenant *tenant = lane->tenant;
    heap_remove(&lane->jobs, &job->key);
    if (lane->jobs.n == 0) {
        heap_remove(&pool->lanes[lane->kind], &lane->key);
        if (lane->key.key > pool->floor[lane->kind]) pool->floor[lane->kind] = lane->key.key;
    }
    pool->waiting--;
    pool->waiting_bytes -= job->bytes;
    tenant->bytes -= job->bytes;
    if (--tenant->jobs == 0) tenant_free(pool, tenant);
}

static void owner_add(struct intake_owner *owner, struct intake_job *job)
{
    job->owner = owner;
    job->owner_previous = NULL;
    job->owner_next = owner ? owner->jobs : NULL;
    if (job->owner_next) job->owner_next->owner_previous = job;
    if (owner) owner->jobs = job;
}

static void owner_remove(struct intake_job *job)
{
    if (!job->owner) return;
    if (job->owner_next) job->owner_next->owner_previous = job->owner_previous;
    if (job->owner_previous)
        job->owner_previous->owner_next = job->owner_next;
    else
        job->owner->jobs = job->owner_next;
}

static void job_remove(struct intake_pool *pool, struct intake_job *job)
{
    lane_remove(pool, job);
    owner_remove(job);
}

// ---- threads

static struct intake_job *first_job(struct intake_pool *pool, enum lane_kind kind)
{
    if (!pool->lanes[kind].n) return NULL;
    struct intake_lane *lane = (struct intake_lane *)pool->lanes[kind].entries[0];
    return (struct intake_job *)((char *)lane->jobs.entries[0] - offsetof(struct intake_job, key));
}

// Returns the first job of the kind if it may start now, else NULL. A long job may start if no other long job runs, or
// if all long jobs together fit INTAKE_RUNNING_BYTES. If the first job does not fit, a smaller job must not overtake
// it: otherwise the first job could wait for ever.
static struct intake_job *first_to_start(struct intake_pool *pool, enum lane_kind kind)
{
    struct intake_job *job = first_job(pool, kind);
    if (!job || kind == LANE_SHORT || !pool->running_long_bytes) return job;
    return pool->running_long_bytes + job->bytes <= INTAKE_RUNNING_BYTES ? job : NULL;
}

// Removes the next job for this thread from the waiting jobs. Returns NULL if no job may start on this thread.
static struct intake_job *remove_next_job(struct intake_pool *pool, bool short_only)
{
    pool->turn = !pool->turn;
    enum lane_kind kind = pool->options.threads == 1 && pool->turn ? LANE_SHORT : LANE_LONG;
    struct intake_job *job = short_only ? NULL : first_to_start(pool, kind);
    if (!job) job = first_to_start(pool, short_only ? LANE_SHORT : LANE_KINDS - 1 - kind);
    if (!job) return NULL;
    job->lane->key.key += job->bytes;
    heap_sift(&pool->lanes[job->lane->kind], &job->lane->key);
    job_remove(pool, job);
    return job;
}

static enum lane_kind job_kind(const struct intake_job *job)
{
    return job->bytes <= INTAKE_SHORT_BYTES ? LANE_SHORT : LANE_LONG;
}

// Wakes the threads that wait because no long job could start.
static void wake_for_long_jobs(struct intake_pool *pool)
{
    if (pool->lanes[LANE_LONG].n) pthread_cond_broadcast(&pool->any);
}

static void run_job(struct intake_pool *pool, struct intake_job *job)
{
    size_t bytes = job->bytes, long_bytes = job_kind(job) == LANE_LONG ? bytes : 0;
    pool->running++;
    pool->running_bytes += bytes;
    pool->running_long_bytes += long_bytes;
    pthread_mutex_unlock(&pool->mutex);
    job->run(job, false);
    pthread_mutex_lock(&pool->mutex);
    pool->running--;
    pool->running_bytes -= bytes;
    pool->running_long_bytes -= long_bytes;
    if (long_bytes) wake_for_long_jobs(pool);
}

// Lowers the priority of this thread. If cores are scarce, tokens of running streams matter more than new prompts.
static void thread_yield_to_others(void)
{
    enum { NICE = 10 };
    setpriority(PRIO_PROCESS, 0, NICE); // Linux applies it to this thread alone
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
}

static void *pool_thread_run(void *argument)
{
    struct pool_thread *self = argument;
    struct intake_pool *pool = self->pool;
    thread_yield_to_others();
    pthread_mutex_lock(&pool->mutex);
    while (!pool->closing) {
        struct intake_job *job = remove_next_job(pool, self->short_only);
        if (job) {
            run_job(pool, job);
        } else if (self->short_only) {
            pool->short_waits = true;
            pthread_cond_wait(&pool->short_job, &pool->mutex);
            pool->short_waits = false;
        } else {
            pthread_cond_wait(&pool->any, &pool->mutex);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void wake_thread(struct intake_pool *pool, enum lane_kind kind)
{
    if (kind == LANE_SHORT && pool->short_waits) {
        pool->short_waits = false; // that thread will run this job; the next job wakes another thread
        pthread_cond_signal(&pool->short_job);
    } else {
        pthread_cond_signal(&pool->any);
    }
}

// ---- public

struct intake_pool *intake_pool_open(const struct intake_pool_options *options)
{
    struct intake_pool *pool = mem_alloc(sizeof *pool);
    pool->options = *options;
    pool->hash_key = hash_key_random();
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->any, NULL);
    pthread_cond_init(&pool->short_job, NULL);
    pool->threads = mem_alloc_array((size_t)options->threads, sizeof *pool->threads);
    for (int i = 0; i < options->threads; i++) {
        pool->threads[i] = (struct pool_thread){.pool = pool, .short_only = i == 0 && options->threads > 1};
        thread_start(&pool->threads[i].thread, "tokenise", pool_thread_run, &pool->threads[i]);
    }
    return pool;
}

void intake_pool_set_bounds(struct intake_pool *pool, int max_jobs, int tenant_share_percent)
{
    pthread_mutex_lock(&pool->mutex);
    pool->options.max_jobs = max_jobs;
    pool->options.tenant_share_percent = tenant_share_percent;
    pthread_mutex_unlock(&pool->mutex);
}

static enum status check_bounds(struct intake_pool *pool, const struct intake_job *job,
                                const struct pool_tenant *tenant)
{
    const struct intake_pool_options *o = &pool->options;
    size_t bytes = pool->waiting_bytes + pool->running_bytes;
    if (pool->closing) return status_fail(STATUS_UNAVAILABLE, "the router is shutting down");
    if (pool->waiting >= o->max_jobs || (bytes && bytes + job->bytes > o->max_bytes)) {
        return status_fail(
            STATUS_EXHAUSTED,
            "%d prompts of %zu bytes wait to be tokenised, at most %d of %zu bytes are allowed: try again later",
            pool->waiting + pool->running, bytes, o->max_jobs, o->max_bytes);
    }
    int64_t held = tenant ? (int64_t)tenant->bytes : 0;
    if (tenant_share_allows(o->tenant_share_percent, held, (int64_t)job->bytes, (int64_t)o->max_bytes, (int64_t)bytes))
        return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "prompts of %zu bytes of this tenant wait to be tokenised: try again later",
                       tenant->bytes);
}

enum status intake_pool_add(struct intake_pool *pool, struct intake_job *job, struct intake_owner *owner)
{
    enum lane_kind kind = job_kind(job);
    pthread_mutex_lock(&pool->mutex);
    struct pool_tenant **tenant = tenant_find(pool, job->tenant);
    enum status status = check_bounds(pool, job, *tenant);
    if (status == STATUS_OK) {
        if (!*tenant) *tenant = tenant_create(pool, job->tenant);
        lane_add(pool, &(*tenant)->lanes[kind], job);
        owner_add(owner, job);
        wake_thread(pool, kind);
    }
    pthread_mutex_unlock(&pool->mutex);
    return status;
}

// Removes the owner's jobs from the pool and returns them as a list by owner_next. The caller holds the mutex.
static struct intake_job *owner_clear(struct intake_pool *pool, struct intake_owner *owner)
{
    struct intake_job *jobs = NULL;
    while (owner->jobs) {
        struct intake_job *job = owner->jobs;
        job_remove(pool, job);
        job->owner_next = jobs;
        jobs = job;
    }
    return jobs;
}

static void drop_all(struct intake_job *jobs)
{
    while (jobs) {
        struct intake_job *job = jobs;
        jobs = job->owner_next;
        job->run(job, true);
    }
}

void intake_pool_cancel(struct intake_pool *pool, struct intake_owner *owner)
{
    pthread_mutex_lock(&pool->mutex);
    struct intake_job *jobs = owner_clear(pool, owner);
    if (jobs) wake_for_long_jobs(pool); // a removed job may have been the first long job
    pthread_mutex_unlock(&pool->mutex);
    drop_all(jobs);
}

int intake_pool_waiting(struct intake_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    int waiting = pool->waiting;
    pthread_mutex_unlock(&pool->mutex);
    return waiting;
}

bool intake_pool_idle(struct intake_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    bool idle = !pool->waiting && !pool->running;
    pthread_mutex_unlock(&pool->mutex);
    return idle;
}

// Removes all waiting jobs and returns them as a list by owner_next. The caller holds the mutex.
static struct intake_job *pool_clear(struct intake_pool *pool)
{
    struct intake_job *jobs = NULL, *job;
    for (enum lane_kind kind = LANE_SHORT; kind < LANE_KINDS; kind++) {
        while ((job = first_job(pool, kind))) {
            job_remove(pool, job);
            job->owner_next = jobs;
            jobs = job;
        }
    }
    return jobs;
}

void intake_pool_close(struct intake_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->closing = true;
    struct intake_job *jobs = pool_clear(pool);
    pthread_cond_broadcast(&pool->any);
    pthread_cond_broadcast(&pool->short_job);
    pthread_mutex_unlock(&pool->mutex);
    drop_all(jobs);
    for (int i = 0; i < pool->options.threads; i++)
        pthread_join(pool->threads[i].thread, NULL);
}

void intake_pool_free(struct intake_pool *pool)
{
    if (!pool) return;
    for (enum lane_kind kind = LANE_SHORT; kind < LANE_KINDS; kind++)
        free(pool->lanes[kind].entries);
    pthread_cond_destroy(&pool->any);
    pthread_cond_destroy(&pool->short_job);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->threads);
    free(pool);
}
