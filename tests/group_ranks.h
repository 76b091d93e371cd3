// SPDX-License-Identifier: Apache-2.0
// Ranks of a group as threads of one process.
#pragma once

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/roll_call.h"
#include "engine/wakeup.h"
#include "tests/comm_threads.h"

enum { RANKS = 3 };

// Options of one rank that differ from those of the others. NULL: no difference.
struct rank_options {
    const char *backend, *dtype, *kv_dtype, *allreduce_dtype;
    int kv_blocks, stages;
    const char *stage_layers;
};

struct rank {
    pthread_t thread;
    struct comm *comm;
    const char *dir;
    struct rank_options own;
    struct engine *engine;
    struct roll_call *roll_call;
    bool mute;             // the rank keeps its socket open and answers no roll call, like a stopped process
    struct wakeup *wakeup; // of a mute rank
    enum status status;
    char message[256];
};

static inline void keep_message(struct rank *r)
{
    snprintf(r->message, sizeof r->message, "%s", status_message());
}

static inline void start_ranks(struct rank *ranks, int size, void *(*first)(void *), void *(*others)(void *))
{
    struct comm *comms[8];
    ck_assert_int_le(size, 8);
    ck_assert_int_eq(comm_open_threads(size, comms), STATUS_OK);
    for (int r = 0; r < size; r++) {
        ranks[r].comm = comms[r];
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, r ? others : first, &ranks[r]), 0);
    }
}

static inline void join_ranks(struct rank *ranks, int size)
{
    for (int r = 0; r < size; r++) {
        pthread_join(ranks[r].thread, NULL);
        ranks[r].comm->ops->close(ranks[r].comm);
    }
}

// Returns the log of a child process that calls run_child(), which must end with exit code 1.
static inline char *last_words(void (*run_child)(void))
{
    static char log_text[4096];
    int fds[2], code;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(fds[1], STDERR_FILENO);
        run_child();
        _exit(0);
    }
    close(fds[1]);
    ssize_t n;
    size_t length = 0;
    while (length < sizeof log_text - 1 && (n = read(fds[0], log_text + length, sizeof log_text - 1 - length)) > 0)
        length += (size_t)n;
    log_text[length] = 0;
    close(fds[0]);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_msg(WIFEXITED(code), "ended with %d: %s", code, log_text);
    ck_assert_msg(WEXITSTATUS(code) == 1, "ended with %d: %s", code, log_text);
    return log_text;
}
