// SPDX-License-Identifier: Apache-2.0
// forepack-speculator: one member of the speculator pool, alone or as the ranks of one mpirun.
#include "speculator/serve.h"

static struct node_options common;

static const struct option options[] = {
    NODE_OPTION_ROWS(common, "2048", "32"),
    {0},
};

static const struct node_program program = {
    .name = "speculator",
    .role = FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR,
    .usage = "usage: forepack-speculator --model DIR --router HOST:PORT [options]\n"
             "       mpirun -n RANKS forepack-speculator ...\n\n"
             "Scores prompts with a small model, so that the workers prefill only the tokens that matter.\n"
             "SIGTERM, SIGINT or SIGUSR1 drains it; a second one ends it at once.",
    .options = options,
    .common = &common,
    .serve = speculator_serve,
};

int main(int argc, char **argv)
{
    return node_main(&program, argc, argv);
}
