// SPDX-License-Identifier: Apache-2.0
// forepack-bench: the measurements, and the other commands that run a model in their own process. People reach it as
// `forepack bench`, `forepack plan` and `forepack generate --model`.
#include "bench/commands/bench.h"
#include "cli/program.h"

static const struct program_command commands[] = {
    {"engine", bench_engine, "prefill and decode of one model, on the engine directly"},
    {"kernels", bench_kernels, "the matrix products of one layer alone"},
    {"perplexity", bench_perplexity, "what the types of weights cost in quality, on texts of your own"},
    {"prefill-quality", bench_quality, "right answers and time to the first token over what is kept"},
    {"serve", bench_serve, "what clients of a running cluster see under load"},
    {"prepack", bench_prepack, "prompts of different lengths: padded, in batches, packed"},
    {"router", bench_router, "time to pack a queue, and the router's CPU time for a request"},
    {"plan", bench_plan, "'forepack plan': memory and cost of a model on GPUs"},
    {"generate", bench_generate, "'forepack generate --model': one request without a cluster"},
};

int main(int argc, char **argv)
{
    static const struct program program = {
        .name = "forepack-bench",
        .invoked = "forepack bench",
        .noun = "measurement",
        .argument = "WHAT",
        .commands = commands,
        .n_commands = sizeof commands / sizeof commands[0],
    };
    return program_main(&program, argc, argv);
}
