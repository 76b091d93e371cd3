// SPDX-License-Identifier: Apache-2.0
#include "sim/isolated.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "sim/generate.h"

static struct run_result *results_share(size_t n)
{
    void *memory = mmap(NULL, n * sizeof(struct run_result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort(); // out of memory
    return memory;
}

static void results_release(struct run_result *results, size_t n)
{
    munmap(results, n * sizeof *results);
}

static pid_t run_start(const struct scenario *scenario, bool quiet, struct run_result *result)
{
    fflush(NULL);
    memset(result, 0, sizeof *result);
    pid_t pid = fork();
    if (pid < 0) abort(); // out of processes or memory
    if (pid) return pid;
    setrlimit(RLIMIT_CPU, &(struct rlimit){ISOLATED_CPU_S, ISOLATED_CPU_S});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    int nowhere = quiet ? open("/dev/null", O_WRONLY) : -1;
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
    *result = run_scenario(scenario, NULL);
    exit(0); // runs the checks that sanitizers do at exit
}

static void run_finish(pid_t pid, struct run_result *result)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    result->failed = true;
    const char *name = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an exit code other than 0";
    snprintf(result->violation, sizeof result->violation, "the process died: %s", name);
}

void isolated_run(const struct scenario *scenario, bool quiet, struct run_result *result)
{
    struct run_result *shared = results_share(1);
    run_finish(run_start(scenario, quiet, shared), shared);
    *result = *shared;
    results_release(shared, 1);
}

// --- many

void isolated_run_seeds(uint64_t first, uint64_t n, int64_t events, int jobs, isolated_end_fn *on_end, void *arg)
{
    size_t slots = (size_t)jobs;
    struct run_result *results = results_share(slots);
    pid_t *pids = mem_alloc_array(slots, sizeof *pids);
    bool more = true;
    for (uint64_t started = 0, ended = 0; ended < n && (more || ended < started);) {
        if (more && started < n && started - ended < slots) {
            struct scenario s;
            scenario_generate(first + started, events, &s);
            pids[started % slots] = run_start(&s, false, &results[started % slots]);
            scenario_fini(&s);
            started++;
            continue;
        }
        run_finish(pids[ended % slots], &results[ended % slots]);
        if (more) more = on_end(arg, first + ended, &results[ended % slots]);
        ended++;
    }
    free(pids);
    results_release(results, slots);
}
