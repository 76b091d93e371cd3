// SPDX-License-Identifier: Apache-2.0
#include "router/batch/disk_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/base/thread.h"

enum { THREADS = 4 };

struct work {
    struct work *next;
    disk_work_fn *run;
    void *arg;
};

struct disk_pool {
    pthread_t threads[THREADS];
    pthread_mutex_t lock; // guards the members below
    pthread_cond_t added;
    struct work *first, **end;
    bool closing;
};

// Takes the next work. Waits until there is some. Returns NULL if the pool closes.
static struct work *work_take(struct disk_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    while (!pool->first && !pool->closing)
        pthread_cond_wait(&pool->added, &pool->lock);
    struct work *work = pool->first;
    if (work) pool->first = work->next;
    if (!pool->first) pool->end = &pool->first;
    pthread_mutex_unlock(&pool->lock);
    return work;
}

static void *pool_run(void *arg)
{
    for (struct work *work; (work = work_take(arg));) {
        work->run(work->arg);
        free(work);
    }
    return NULL;
}

struct disk_pool *disk_pool_open(void)
{
    struct disk_pool *pool = mem_alloc(sizeof *pool);
    pool->end = &pool->first;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->added, NULL);
    for (int i = 0; i < THREADS; i++)
        thread_start(&pool->threads[i], "disk", pool_run, pool);
    return pool;
}

void disk_pool_add(struct disk_pool *pool, disk_work_fn *run, void *arg)
{
    struct work *work = mem_alloc(sizeof *work);
    *work = (struct work){.run = run, .arg = arg};
    pthread_mutex_lock(&pool->lock);
    *pool->end = work;
    pool->end = &work->next;
    pthread_cond_signal(&pool->added);
    pthread_mutex_unlock(&pool->lock);
}

void disk_pool_close(struct disk_pool *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->added);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->added);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
