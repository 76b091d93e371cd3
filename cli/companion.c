// SPDX-License-Identifier: Apache-2.0
#include "cli/companion.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"
#include "lib/base/program_path.h"

int companion_exec(const char *name, char **argv)
{
    int n = 0;
    while (argv[n])
        n++;
    char *path = program_path(name);
    char **all = mem_alloc_array((size_t)n + 2, sizeof *all); // zeroed, so it ends with NULL
    all[0] = path;
    memcpy(all + 1, argv, (size_t)n * sizeof *all);
    fflush(NULL);
    execv(path, all);
    int error = errno;
    if (error == ENOENT) {
        fprintf(stderr, "%s is not installed: this command needs it as %s\n", name, path);
    } else {
        fprintf(stderr, "%s: %s\n", path, strerror(error));
    }
    free(all);
    free(path);
    return status_exit_code(file_open_status(error));
}
