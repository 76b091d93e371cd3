// SPDX-License-Identifier: Apache-2.0
// The mailbox has two arrays. Posts are appended to one array under the lock while the thread runs the posts of the
// other array.
#include "router/core/loop.h"

#include <pthread.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"

struct post {
    loop_fn fn;
    void *arg;
};

struct loop {
    struct core *core; // borrowed; used by the thread only
    pthread_t thread;
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t wake;  // signalled after a post, and when the loop stops
    struct post *posts;
    int n_posts, capacity;
    bool stopping;
};

// Waits for posts, for the stop of the loop, or for the core's deadline. The caller holds the lock.
static void wait_for_work(struct loop *loop, int64_t deadline_us)
{
    struct timespec until = {deadline_us / 1000000, (deadline_us % 1000000) * 1000};
    while (!loop->n_posts && !loop->stopping) {
        if (deadline_us == INT64_MAX) {
            pthread_cond_wait(&loop->wake, &loop->lock);
        } else if (pthread_cond_timedwait(&loop->wake, &loop->lock, &until)) {
            return;
        }
    }
}

static void *loop_thread(void *arg)
{
    struct loop *loop = arg;
    struct post *batch = NULL;
    int capacity = 0;
    pthread_mutex_lock(&loop->lock);
    for (;;) {
        wait_for_work(loop, core_next_deadline_us(loop->core));
        if (!loop->n_posts && loop->stopping) break;
        struct post *posts = loop->posts;
        int n = loop->n_posts, posts_capacity = loop->capacity;
        loop->posts = batch;
        loop->capacity = capacity;
        loop->n_posts = 0;
        batch = posts;
        capacity = posts_capacity;
        pthread_mutex_unlock(&loop->lock);
        for (int i = 0; i < n; i++)
            batch[i].fn(loop->core, batch[i].arg, clock_now_us());
        core_tick(loop->core, clock_now_us());
        pthread_mutex_lock(&loop->lock);
    }
    pthread_mutex_unlock(&loop->lock);
    free(batch);
    return NULL;
}

struct loop *loop_start(struct core *c)
{
    struct loop *loop = mem_alloc(sizeof *loop);
    loop->core = c;
    pthread_mutex_init(&loop->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); // the clock of clock_now_us()
    pthread_cond_init(&loop->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    thread_start(&loop->thread, "core", loop_thread, loop);
    return loop;
}

void loop_post(struct loop *loop, loop_fn fn, void *arg)
{
    pthread_mutex_lock(&loop->lock);
    MEM_GROW(loop->posts, loop->n_posts, loop->capacity);
    loop->posts[loop->n_posts++] = (struct post){fn, arg};
    bool first = loop->n_posts == 1;
    pthread_mutex_unlock(&loop->lock);
    if (first) pthread_cond_signal(&loop->wake); // after unlocking, so that the woken thread does not block on the lock
}

int loop_backlog(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    int n = loop->n_posts;
    pthread_mutex_unlock(&loop->lock);
    return n;
}

void loop_stop(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->stopping = true;
    pthread_cond_signal(&loop->wake);
    pthread_mutex_unlock(&loop->lock);
    pthread_join(loop->thread, NULL);
    pthread_cond_destroy(&loop->wake);
    pthread_mutex_destroy(&loop->lock);
    free(loop->posts);
    free(loop);
}
