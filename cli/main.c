// SPDX-License-Identifier: Apache-2.0
// forepack: the client. Commands that run a model are executed by forepack-bench.
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

static int command_calibrate(int argc, char **argv)
{
    return companion_exec("forepack-bench", argv);
}

static int command_bench(int argc, char **argv)
{
    return companion_exec("forepack-bench", argv + 1);
}

static const struct program_command commands[] = {
    {"up", command_up, "run a whole cluster on this machine"},
    {"generate", command_generate, "send one request and stream the text"},
    {"chat", command_chat, "hold a conversation"},
    {"batch", command_batch, "send the requests of a JSON Lines file; resumable"},
    {"explain", command_explain, "send one request and print what each stage decided for it"},
    {"score", command_score, "show which prompt tokens the speculator would keep"},
    {"compress", command_compress, "drop the parts of a text that the speculator finds least important"},
    {"status", command_status, "show the nodes, queue, bins and totals of a cluster"},
    {"top", command_top, "watch nodes, queue and bins in a terminal"},
    {"drain", command_drain, "tell a node to finish its requests and leave"},
    {"debug", command_debug, "collect what a report of a fault needs; follow a request through logs"},
    {"keys", command_keys, "add, list and revoke API keys"},
    {"tokenize", command_tokenize, "print the token ids of a text"},
    {"detokenize", command_detokenize, "print the text of token ids"},
    {"render", command_render, "print the prompt that a chat template makes of a conversation"},
    {"completion", command_completion, "print the completion of commands and options for a shell"},
    {"plan", command_plan, "print the memory of a model on GPUs, or the smallest cluster for a load"},
    {"calibrate", command_calibrate, "measure which keep rates of a speculator reach a quality"},
    {"bench", command_bench, "measure the engine, kernels, packing, the router, or a cluster under load"},
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
