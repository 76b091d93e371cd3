// SPDX-License-Identifier: Apache-2.0
#include "engine/join_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum status join_program_check(const char *name)
{
    char *path = mem_string(getenv("PATH") ?: "/usr/bin:/bin"), *rest = path, *folder;
    bool found = false;
    while (!found && (folder = strsep(&rest, ":"))) {
        char *file = mem_format("%s/%s", *folder ? folder : ".", name);
        found = access(file, X_OK) == 0;
        free(file);
    }
    free(path);
    return found ? STATUS_OK : status_fail(STATUS_NOT_FOUND, "%s is not in PATH: install Open MPI (openmpi-bin)", name);
}

enum status join_signals_open(int *fd_p)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&set, numbers[i]);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const int fd = sigprocmask(SIG_BLOCK, &set, NULL) ? -1 : signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) return status_fail(STATUS_INTERNAL, "signals cannot be read: %s", strerror(errno));
    *fd_p = fd;
    return STATUS_OK;
}

// Runs in the child, where only functions that are safe in signal handlers may be called. Writes errno to `report`.
_Noreturn static void child_run(const char *const *arguments, pid_t parent, int report)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent) execvp(arguments[0], (char *const *)arguments);
    const int reason = errno;
    if (write(report, &reason, sizeof reason) < 0) _exit(126);
    _exit(127);
}

enum status join_process_start(const char *const *arguments, pid_t *pid_p)
{
    int report[2], reason = 0;
    if (pipe2(report, O_CLOEXEC)) return status_fail(STATUS_INTERNAL, "no pipe: %s", strerror(errno));
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) child_run(arguments, parent, report[1]);
    const int error = errno;
    close(report[1]);
    const ssize_t n = pid > 0 ? read(report[0], &reason, sizeof reason) : 0;
    close(report[0]);
    if (pid < 0) return status_fail(STATUS_INTERNAL, "%s cannot be started: %s", arguments[0], strerror(error));
    if (n == sizeof reason) {
        waitpid(pid, NULL, 0);
        return status_fail(STATUS_NOT_FOUND, "%s cannot be started: %s", arguments[0], strerror(reason));
    }
    *pid_p = pid;
    return STATUS_OK;
}

bool join_process_reap(pid_t *pid_p, int *code_p)
{
    int status;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return false;
    *pid_p = pid;
    *code_p = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

void join_process_signal_children(pid_t parent, int signal)
{
    char path[64];
    int child;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *list = fopen(path, "re");
    while (list && fscanf(list, "%d", &child) == 1)
        kill(child, signal);
    if (list) fclose(list);
}

// Waits until there are no children, or until the time. Returns true if there are none.
static bool all_gone(int64_t until_us)
{
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD) return true;
        if (pid == 0 && clock_now_us() >= until_us) return false;
        if (pid == 0) poll(NULL, 0, 20);
    }
}

void join_process_end_all(void)
{
    join_process_signal_children(getpid(), SIGTERM);
    if (all_gone(clock_now_us() + 3000000)) return;
    do
        join_process_signal_children(getpid(),
                                     SIGKILL); // the children of a killed child become children of this process
    while (!all_gone(clock_now_us() + 200000));
}
