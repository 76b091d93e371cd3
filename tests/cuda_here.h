// SPDX-License-Identifier: Apache-2.0
// Detection of a GPU for tests of the CUDA backend.
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/backend.h"

// Returns true if there is a GPU or an emulated one. Otherwise prints the reason. A child process checks, since tests
// fork and a process that has used a GPU must not fork. ThreadSanitizer does not support fibers.
static inline bool cuda_is_here(void)
{
#ifdef __SANITIZE_THREAD__
    return false;
#endif
    const struct backend_shape least = {.n_layers = 1,
                                        .n_heads = 1,
                                        .n_kv_heads = 1,
                                        .head_size = 64,
                                        .rope.inv_freq = (float[32]){1},
                                        .max_rows = 1,
                                        .max_seqs = 1,
                                        .max_context = 1,
                                        .n_kv_blocks = 1};
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct backend *b;
        enum status status = backend_open("cuda", &least, DTYPE_BF16, 0, &b);
        if (!status) b->ops->close(b);
        if (status) printf("%s\n", status_message());
        fflush(stdout);
        _exit(status != STATUS_OK);
    }
    int code;
    return child > 0 && waitpid(child, &code, 0) == child && WIFEXITED(code) && WEXITSTATUS(code) == 0;
}
