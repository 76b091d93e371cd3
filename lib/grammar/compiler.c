// SPDX-License-Identifier: Apache-2.0
#include "lib/grammar/compiler.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/thread.h"

struct job {
    struct grammar_compiled result;
    struct grammar_spec spec;
    int32_t *tokens; // [n]
    int n;
    bool dropped; // dropped while it was being compiled
    struct job *next;
};

struct job_list {
    struct job *head, **end;
};

struct grammar_compiler {
    const struct grammar_library *library;
    grammar_wake_fn *wake;
    void *arg;
    pthread_t thread;
    pthread_mutex_t mutex; // guards the members below
    pthread_cond_t changed;
    struct job_list waiting, compiling, done;
    bool stopping;
};

// --- jobs

static void list_init(struct job_list *list)
{
    *list = (struct job_list){NULL, &list->head};
}

static void list_add(struct job_list *list, struct job *job)
{
    job->next = NULL;
    *list->end = job;
    list->end = &job->next;
}

// Removes the job that `*at`, a link of the list, points to.
static struct job *list_remove(struct job_list *list, struct job **at)
{
    struct job *job = *at;
    *at = job->next;
    if (!*at) list->end = at;
    return job;
}

static void job_free(struct job *job)
{
    grammar_matcher_free(job->result.matcher);
    free(job->result.reason);
    grammar_spec_free(&job->spec);
    free(job->tokens);
    free(job);
}

static void list_clear(struct job_list *list)
{
    while (list->head)
        job_free(list_remove(list, &list->head));
}

static void list_drop(struct job_list *list, uint64_t id)
{
    for (struct job **at = &list->head; *at; at = &(*at)->next) {
        if ((*at)->result.id != id) continue;
        job_free(list_remove(list, at));
        return;
    }
}

// --- the thread

// Called with the mutex held.
static void take_equal_jobs(struct grammar_compiler *c)
{
    const struct grammar_spec *spec = &c->compiling.head->spec;
    for (struct job **at = &c->waiting.head; *at;) {
        if (grammar_specs_equal(spec, &(*at)->spec)) {
            list_add(&c->compiling, list_remove(&c->waiting, at));
        } else {
            at = &(*at)->next;
        }
    }
}

// Finishes a job. `matcher` is the job's own matcher, or NULL. If it is NULL, status_message() has the reason.
static void job_finish(struct job *job, struct grammar_matcher *matcher)
{
    if (matcher && grammar_matcher_accept(matcher, job->tokens, job->n) == STATUS_OK) {
        job->result.matcher = matcher;
        return;
    }
    job->result.reason = mem_string(status_message());
    grammar_matcher_free(matcher);
}

// Finishes equal jobs. The first job gets the matcher itself and the other jobs get copies, so the first job is
// finished last.
static void jobs_finish(struct job *first, struct grammar_matcher *matcher)
{
    for (struct job *job = first->next; job; job = job->next)
        job_finish(job, matcher ? grammar_matcher_copy(matcher) : NULL);
    job_finish(first, matcher);
}

// Called with the mutex held.
static void keep_results(struct grammar_compiler *c)
{
    while (c->compiling.head) {
        struct job *job = list_remove(&c->compiling, &c->compiling.head);
        if (job->dropped) {
            job_free(job);
        } else {
            list_add(&c->done, job);
        }
    }
}

// Compiles the next grammar. The caller holds the mutex; this function releases it while compiling.
static void compile_next(struct grammar_compiler *c)
{
    struct job *first = list_remove(&c->waiting, &c->waiting.head);
    list_add(&c->compiling, first);
    pthread_mutex_unlock(&c->mutex);
    struct grammar_matcher *matcher = NULL;
    (void)!grammar_matcher_create(c->library, &first->spec, &matcher); // if it fails, jobs_finish() keeps the reason
    pthread_mutex_lock(&c->mutex);
    take_equal_jobs(c); // also jobs that were added meanwhile
    pthread_mutex_unlock(&c->mutex);
    jobs_finish(first, matcher);
    pthread_mutex_lock(&c->mutex);
    keep_results(c);
    if (c->done.head) c->wake(c->arg);
}

static void *compiler_run(void *arg)
{
    struct grammar_compiler *c = arg;
    pthread_mutex_lock(&c->mutex);
    while (!c->stopping) {
        if (c->waiting.head) {
            compile_next(c);
        } else {
            pthread_cond_wait(&c->changed, &c->mutex);
        }
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

// --- the owner

struct grammar_compiler *grammar_compiler_create(const struct grammar_library *library, grammar_wake_fn *wake,
                                                 void *arg)
{
    struct grammar_compiler *c = mem_alloc(sizeof *c);
    c->library = library;
    c->wake = wake;
    c->arg = arg;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
    list_init(&c->waiting);
    list_init(&c->compiling);
    list_init(&c->done);
    thread_start(&c->thread, "grammar", compiler_run, c);
    return c;
}

void grammar_compiler_free(struct grammar_compiler *c)
{
    if (!c) return;
    pthread_mutex_lock(&c->mutex);
    c->stopping = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    pthread_join(c->thread, NULL);
    list_clear(&c->waiting);
    list_clear(&c->done);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

void grammar_compiler_add(struct grammar_compiler *c, uint64_t id, const struct grammar_spec *spec,
                          const int32_t *tokens, int n)
{
    struct job *job = mem_alloc(sizeof *job);
    job->result.id = id;
    job->spec = grammar_spec_copy(spec);
    job->tokens = mem_copy(tokens, (size_t)n * sizeof *tokens);
    job->n = n;
    pthread_mutex_lock(&c->mutex);
    list_add(&c->waiting, job);
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

void grammar_compiler_drop(struct grammar_compiler *c, uint64_t id)
{
    pthread_mutex_lock(&c->mutex);
    list_drop(&c->waiting, id);
    list_drop(&c->done, id);
    for (struct job *job = c->compiling.head; job; job = job->next)
        job->dropped |= job->result.id == id;
    pthread_mutex_unlock(&c->mutex);
}

bool grammar_compiler_take(struct grammar_compiler *c, struct grammar_compiled *result)
{
    pthread_mutex_lock(&c->mutex);
    struct job *job = c->done.head ? list_remove(&c->done, &c->done.head) : NULL;
    pthread_mutex_unlock(&c->mutex);
    if (!job) return false;
    *result = job->result;
    job->result = (struct grammar_compiled){0};
    job_free(job);
    return true;
}
