// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/engine/sizing.h"
#include "lib/base/mem.h"
#include "lib/base/program_path.h"

extern char **environ;

enum { ARGUMENTS_MAX = 80 };

struct arguments {
    char *items[ARGUMENTS_MAX + 1]; // owned; ends with NULL
    int n;
};

static void argument_add(struct arguments *a, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Adds "--name" and its value.
static void argument_add(struct arguments *a, const char *name, const char *format, ...)
{
    char value[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    a->items[a->n++] = mem_format("--%s", name);
    a->items[a->n++] = mem_string(value);
}

static void load_add(struct arguments *a, const struct sizing *s, int requests)
{
    const struct plan_flags *f = s->flags;
    if (f->trace) argument_add(a, "trace", "%s", f->trace);
    if (f->prompt_tokens && !f->trace) argument_add(a, "prompt-tokens", "%s", f->prompt_tokens);
    if (f->output_tokens) argument_add(a, "max-tokens", "%lld", (long long)f->output_tokens);
    if (f->shared_tokens) argument_add(a, "shared-prefix-tokens", "%lld", (long long)f->shared_tokens);
    if (s->load.qps > 0) argument_add(a, "qps", "%.9g", s->load.qps);
    if (requests) argument_add(a, "requests", "%d", requests);
}

static void cluster_add(struct arguments *a, const struct sizing *s, const struct sizing_cluster *c)
{
    const struct plan_flags *f = s->flags;
    argument_add(a, "gpu", "%s", f->gpu);
    argument_add(a, "shape", "%s", f->model ? f->model : f->shape);
    argument_add(a, "dtype", "%s", f->dtype);
    argument_add(a, "kv-cache-dtype", "%s", f->kv_dtype);
    argument_add(a, "workers", "%d", c->groups);
    argument_add(a, "tp", "%d", c->tp);
    argument_add(a, "kv-blocks", "%lld", (long long)c->kv_blocks);
    argument_add(a, "max-num-seqs", "%lld", (long long)c->max_seqs);
    argument_add(a, "max-num-batched-tokens", "%lld", (long long)c->token_budget);
    argument_add(a, "itl-target-ms", "%lld", (long long)c->itl_target_ms);
    argument_add(a, "speculators", "%d", c->speculators);
    argument_add(a, "tail-tokens", "%lld", (long long)f->tail_tokens);
    if (c->way == SIZING_ALL_KEPT) return;
    argument_add(a, "spec-shape", "%s", f->spec_shape);
    argument_add(a, "spec-dtype", "%s", f->spec_dtype);
    argument_add(a, "spec-tp", "%d", c->spec_tp);
    argument_add(a, "spec-kv-blocks", "%lld", (long long)c->spec_kv_blocks);
    argument_add(a, "keep-rate", "%g", f->keep_rate);
    argument_add(a, "prefill", "on");
}

// Reads the report of the child, and waits for its end. The child prints its own error message.
static enum status child_read(pid_t child, int fd, json_t **report_p)
{
    FILE *file = fdopen(fd, "r");
    json_error_t error;
    *report_p = file ? json_loadf(file, 0, &error) : NULL;
    if (file)
        fclose(file);
    else
        close(fd);
    int ended = 0;
    while (waitpid(child, &ended, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0 && *report_p) return STATUS_OK;
    json_decref(*report_p);
    return status_fail(STATUS_INTERNAL, "forepack-sim ended without a report");
}

static enum status child_run(struct arguments *a, json_t **report_p)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0) return status_fail(STATUS_INTERNAL, "no pipe: %s", strerror(errno));
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, pipe_fds[1], STDOUT_FILENO);
    pid_t child;
    const int failed = posix_spawn(&child, a->items[0], &files, NULL, a->items, environ);
    posix_spawn_file_actions_destroy(&files);
    close(pipe_fds[1]);
    if (!failed) return child_read(child, pipe_fds[0], report_p);
    close(pipe_fds[0]);
    return status_fail(STATUS_NOT_FOUND, "%s: %s: sizing a cluster needs this program", a->items[0], strerror(failed));
}

static double report_number(const json_t *report, const char *key)
{
    return json_number_value(json_object_get(report, key));
}

static void report_read(const json_t *report, struct sizing_cluster *c)
{
    const json_t *pools = json_object_get(report, "pools");
    c->ttft_p50_s = report_number(report, "ttft_ms_p50") / 1e3;
    c->ttft_p95_s = report_number(report, "ttft_ms_p95") / 1e3;
    c->itl_p50_s = report_number(report, "itl_ms_p50") / 1e3;
    c->itl_p95_s = report_number(report, "itl_ms_p95") / 1e3;
    c->requests_per_s = report_number(report, "requests_per_s");
    c->utilisation = report_number(json_array_get(pools, 0), "utilisation");
    c->spec_utilisation = report_number(json_array_get(pools, 1), "utilisation");
}

// Decides whether the cluster keeps the limits.
static void limits_check(const struct sizing *s, const json_t *report, struct sizing_cluster *c)
{
    const double failed = report_number(report, "failed");
    c->is_held = false;
    if (failed > 0)
        snprintf(c->failure, sizeof c->failure, "%.0f requests are refused", failed);
    else if (s->limits.ttft_p95_s > 0 && c->ttft_p95_s > s->limits.ttft_p95_s)
        snprintf(c->failure, sizeof c->failure, "TTFT p95 is %.3g s", c->ttft_p95_s);
    else if (s->limits.itl_p95_s > 0 && c->itl_p95_s > s->limits.itl_p95_s)
        snprintf(c->failure, sizeof c->failure, "ITL p95 is %.3g s", c->itl_p95_s);
    else
        c->is_held = true;
}

enum status sizing_run(const struct sizing *s, int requests, struct sizing_cluster *c)
{
    struct arguments a = {.n = 0};
    a.items[a.n++] = program_path("forepack-sim");
    a.items[a.n++] = mem_string("--json");
    load_add(&a, s, requests);
    cluster_add(&a, s, c);
    json_t *report = NULL;
    enum status status = child_run(&a, &report);
    if (status == STATUS_OK) {
        report_read(report, c);
        limits_check(s, report, c);
        json_decref(report);
    }
    for (int i = 0; i < a.n; i++)
        free(a.items[i]);
    return status;
}
