// SPDX-License-Identifier: Apache-2.0
// forepack-bench: the measurements, and the other commands that run a model in their own process. Users call it through
// `forepack bench`, `forepack plan`, `forepack calibrate` and `forepack generate --model`.
#include "bench/commands/bench.h"
#include "cli/engine/commands.h"
#include "cli/program.h"

// A help line that starts with a quote refers to a command that has its own man page (deploy/cmake/man_pages.sh).
static const struct program_command commands[] = {
    {"engine", bench_engine, "prefill, decode and scoring of one model, on the engine directly"},
    {"kernels", bench_kernels, "the gemms or the attention of one layer, compared with oneDNN"},
    {"perplexity", bench_perplexity, "the perplexity of your own texts with each dtype"},
    {"prefill-quality", bench_quality, "right answers or time to first token, by keep rate"},
    {"documents", bench_documents, "documents with questions whose answers can be checked exactly"},
    {"http", bench_http, "the HTTP server alone: requests, new connections and streams, plain and by TLS"},
    {"serve", bench_serve, "latencies and throughput of a running cluster under load"},
    {"prepack", bench_prepack, "prefill time, time to first token and memory of packing policies"},
    {"router", bench_router, "packing time, bins, and CPU time of the router's core per request"},
    {"router-grpc", bench_router_grpc,
     "latency, throughput and CPU time of a whole router, with a node that answers immediately"},
    {"router-http", bench_router_http, "the same over HTTP, and many concurrent server-sent streams"},
    {"router-page", bench_router_page,
     "CPU time of a router for each open live page, with many nodes and a long queue"},
    {"hostile", bench_hostile, "latency of polite clients of a router, alone and next to many hostile clients"},
    {"sampling", bench_sampling, "CPU time to sample a token on the host, and its charge in tokens"},
    {"template", bench_template, "CPU time to parse and render a chat template"},
    {"tokenizer", bench_tokenizer, "CPU time to convert text to tokens"},
    {"grammar", bench_grammar, "CPU time to compute the token masks of structured output"},
    {"plan", engine_command_plan, "'forepack plan': memory of a model on GPUs, or the smallest cluster for a load"},
    {"calibrate", engine_command_calibrate, "'forepack calibrate': the keep rates of a speculator for a quality"},
    {"generate", engine_command_generate, "'forepack generate --model': one request without a cluster"},
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
