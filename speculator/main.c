// SPDX-License-Identifier: Apache-2.0
// forepack-speculator: one rank of a speculator. Options, start and end are node_main(), shared with the worker.
#include "speculator/serve.h"

static struct node_options common;

static const struct option options[] = {
    NODE_OPTION_ROWS(common, "2048", "32"),
    {0},
};

static const struct node_program program = {
    .name = "speculator",
    .role = FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR,
    .usage =
        "usage: forepack-speculator --model DIR --router HOST:PORT [options]\n" GROUP_USAGE
        "\nA speculator of a Forepack cluster: scores prompts with a small model and selects the tokens to prefill.\n"
        "SIGTERM, SIGINT or SIGUSR1 drains it; a second signal ends it at once.",
    .options = options,
    .common = &common,
    .serve = speculator_serve,
};

int main(int argc, char **argv)
{
    return node_main(&program, argc, argv);
}
