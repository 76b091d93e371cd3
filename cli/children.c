// SPDX-License-Identifier: Apache-2.0
#include "cli/children.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"

enum { PAUSE_FIRST_MS = 200, PAUSE_MAX_MS = 5000, STEADY_MS = 10000 };

// Becomes the program of the child's role, in the forked child.
static _Noreturn void child_exec(const struct child *c, pid_t parent, child_arguments_fn *arguments)
{
    setpgid(0, 0); // so the terminal sends Ctrl-C only to the parent, which ends the children in order
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    // The children must not read standard input: a terminal stops a background process (mpirun) that reads it.
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    char **items = arguments(c);
    execvp(items[0], items);
    fprintf(stderr, "%s: %s\n", items[0], strerror(errno));
    _exit(CHILD_NOT_FOUND);
}

static void child_start(struct child *c, child_arguments_fn *arguments)
{
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        log_event(LOG_ERROR, "fork_failed", LOG_FIELD("role", c->role), LOG_FIELD("reason", strerror(errno)));
        c->restart_us = clock_now_us() + PAUSE_MAX_MS * 1000;
        return;
    }
    if (pid == 0) child_exec(c, parent, arguments);
    setpgid(pid, pid);
    c->pid = pid;
    c->started_us = clock_now_us();
    c->restart_us = INT64_MAX;
}

// Drains a child. mpirun forwards SIGUSR1 to its ranks immediately, but on SIGTERM it kills them.
void child_drain(const struct child *c)
{
    if (c->pid) kill(c->pid, c->ranks > 1 ? SIGUSR1 : SIGTERM);
}

// Schedules the restart of a failed child after a pause. The pause is reset if the child has run for a while.
static void child_schedule_restart(struct child *c, const char *name, int wait_status)
{
    bool exited = WIFEXITED(wait_status);
    int64_t lived_ms = (clock_now_us() - c->started_us) / 1000;
    if (lived_ms > STEADY_MS || !c->pause_ms) c->pause_ms = PAUSE_FIRST_MS;
    c->restart_us = clock_now_us() + c->pause_ms * 1000;
    log_event(LOG_WARN, "node_failed", LOG_FIELD("node", name),
              LOG_FIELD(exited ? "exit_code" : "signal", exited ? WEXITSTATUS(wait_status) : WTERMSIG(wait_status)),
              LOG_MS("restart_in_ms", c->pause_ms * 1000));
    c->pause_ms = c->pause_ms * 2 > PAUSE_MAX_MS ? PAUSE_MAX_MS : c->pause_ms * 2;
}

// Handles a child that has ended. Returns an exit code if the cluster cannot continue, else -1.
static int child_ended(struct child *c, int wait_status)
{
    char *name = mem_format("%s-%d", c->role, c->index);
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1, result = -1;
    if (code == 0) {
        log_event(LOG_INFO, "node_drained", LOG_FIELD("node", name));
    } else if (code == CHILD_WRONG_USAGE || code == CHILD_NOT_FOUND) {
        log_event(LOG_ERROR, "node_misconfigured", LOG_FIELD("node", name)); // the node's own log has the reason
        result = CHILD_WRONG_USAGE;
    } else {
        child_schedule_restart(c, name, wait_status);
    }
    free(name);
    return result;
}

int children_reap(struct child *children, int n, bool draining)
{
    int wait_status, result = -1;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (int i = 0; i < n; i++) {
            if (children[i].pid != pid) continue;
            children[i].pid = 0;
            int code = draining ? -1 : child_ended(&children[i], wait_status);
            if (code >= 0) result = code;
        }
    }
    return result;
}

int children_running(const struct child *children, int n)
{
    int running = 0;
    for (int i = 0; i < n; i++)
        running += children[i].pid != 0;
    return running;
}

int64_t children_start_due(struct child *children, int n, child_arguments_fn *arguments)
{
    int64_t now = clock_now_us(), next = INT64_MAX;
    for (int i = 0; i < n; i++) {
        struct child *c = &children[i];
        if (!c->pid && c->restart_us <= now) child_start(c, arguments);
        if (!c->pid && c->restart_us < next) next = c->restart_us;
    }
    return next;
}

void children_kill(const struct child *children, int n)
{
    for (int i = 0; i < n; i++) {
        if (children[i].pid) kill(-children[i].pid, SIGKILL);
    }
}
