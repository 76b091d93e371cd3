// SPDX-License-Identifier: Apache-2.0
// forepack: the command people type. It is a client; commands that run a model are in forepack-bench.
#include "cli/commands.h"
#include "cli/companion.h"
#include "cli/generate.h"
#include "cli/program.h"

static int command_generate(int argc, char **argv)
{
    return generate_main(argc, argv, NULL);
}

static int command_plan(int argc, char **argv)
{
    return companion_exec("forepack-bench", argv);
}

static int command_bench(int argc, char **argv)
{
    return companion_exec("forepack-bench", argv + 1);
}

static const struct program_command commands[] = {
    {"up", command_up, "run a whole local cluster; Ctrl-C drains it"},
    {"generate", command_generate, "one request, streamed to the terminal"},
    {"chat", command_chat, "several turns"},
    {"batch", command_batch, "many requests from a JSON Lines file; resumable"},
    {"score", command_score, "show which prompt tokens the speculator would keep"},
    {"status", command_status, "nodes, pools, queue and bins of a cluster"},
    {"tokenize", command_tokenize, "text to token ids, with a model directory"},
    {"detokenize", command_detokenize, "token ids to text, with a model directory"},
    {"plan", command_plan, "memory and cost of a model on GPUs, before there are any"},
    {"bench", command_bench, "measurements: engine, kernels, cluster under load, quality, packing, router"},
};

int main(int argc, char **argv)
{
    static const struct program program = {
        .name = "forepack",
        .invoked = "forepack",
        .noun = "command",
        .argument = "COMMAND",
        .commands = commands,
        .n_commands = sizeof commands / sizeof commands[0],
    };
    return program_main(&program, argc, argv);
}
