// SPDX-License-Identifier: Apache-2.0
// stop_thread TID: stops one thread of another process, whose other threads continue. Prints "stopped" and keeps the
// thread stopped until it is killed. Exit code 77: this machine does not allow it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int status;
    if (argc != 2) return 2;
    pid_t tid = atoi(argv[1]);
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) return errno == EPERM ? 77 : 1;
    if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0 || waitpid(tid, &status, __WALL) != tid) return 1;
    puts("stopped");
    fflush(stdout);
    for (;;)
        pause();
}
