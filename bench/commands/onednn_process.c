// SPDX-License-Identifier: Apache-2.0
#include "bench/commands/onednn_process.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/program_path.h"

static const char program_name[] = "forepack-bench-onednn";

bool onednn_is_installed(void)
{
    char *path = program_path(program_name);
    bool installed = access(path, X_OK) == 0;
    free(path);
    return installed;
}

enum status onednn_process_run(struct contender *self, double *seconds_p)
{
    struct onednn_process *p = self->context;
    double seconds;
    if (fprintf(p->to, "%d\n", p->m) < 0 || fflush(p->to) != 0 || fscanf(p->from, "%lf", &seconds) != 1)
        return status_fail(STATUS_INTERNAL, "%s exited before it answered", program_name);
    *seconds_p = seconds;
    return STATUS_OK;
}

// Returns the program's arguments, ending with NULL: DTYPE THREADS COPIES NxK...
static char **onednn_arguments(const char *dtype, int threads, int copies, const struct onednn_gemm *gemms, int n_gemms)
{
    char **argv = mem_alloc_array((size_t)n_gemms + 5, sizeof *argv);
    argv[0] = program_path(program_name);
    argv[1] = mem_string(dtype);
    argv[2] = mem_format("%d", threads);
    argv[3] = mem_format("%d", copies);
    for (int i = 0; i < n_gemms; i++)
        argv[4 + i] = mem_format("%dx%d", gemms[i].n, gemms[i].k);
    return argv;
}

void onednn_process_start(struct onednn_process *p, const char *dtype, int threads, int copies,
                          const struct onednn_gemm *gemms, int n_gemms)
{
    int in[2], out[2];
    if (pipe(in) != 0) return;
    if (pipe(out) != 0) {
        close(in[0]);
        close(in[1]);
        return;
    }
    char **argv = onednn_arguments(dtype, threads, copies, gemms, n_gemms);
    p->pid = fork();
    if (p->pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        close(out[0]);
        execv(argv[0], argv);
        _exit(127);
    }
    if (p->pid < 0) p->pid = 0;
    close(in[0]);
    close(out[1]);
    p->to = fdopen(in[1], "w");
    p->from = fdopen(out[0], "r");
    for (char **a = argv; *a; a++)
        free(*a);
    free(argv);
}

void onednn_process_stop(struct onednn_process *p)
{
    if (p->to) fclose(p->to); // the program exits at the end of its input
    if (p->from) fclose(p->from);
    if (p->pid) waitpid(p->pid, NULL, 0);
}
