// SPDX-License-Identifier: Apache-2.0
// What the programs of both node roles share: the options that describe a model and its place in the cluster, the
// Hello made of them, and the life of a node process from its arguments to its exit code. A program is its table of
// options, its usage line and its serving loop:
//
//     static struct node_options common;
//     static const struct option options[] = {
//         NODE_OPTION_ROWS(common, "2048", "64"),
//         {.name = "my-own", ...},
//         {0},
//     };
//     int main(int argc, char **argv)
//     {
//         static const struct node_program program = {.name = "worker", .role = ..., .usage = ..., .options = options,
//                                                     .common = &common, .serve = serve};
//         return node_main(&program, argc, argv);
//     }
//
// Library: forepack_node.
#pragma once

#include <stdint.h>

#include "base/options.h"
#include "engine/engine.h"
#include "engine/node.h"

// Values of NODE_OPTION_ROWS; the strings live until options_free() of the table.
struct node_options {
    char *model;   // checkpoint directory
    char *shape;   // NULL, or a config.json to run with random weights; `model` then gives the tokenizer alone
    char *load;    // "auto", "dummy": random weights of the model's shape
    char *router;  // host:port
    char *node_id; // NULL: made of role, host and pid
    char *backend, *dtype, *kv_dtype, *packed_cache;
    char *allreduce_dtype; // "f32", "bf16": see group_set_allreduce_bf16
    int64_t threads, token_budget, max_seqs, max_context, kv_blocks, overlap_rows; // as in struct model_options
    double gpu_memory_utilization;                                                 // the same
    bool prefix_cache;
    char *log_level;
};

// Rows for a program's option table. `o` is its struct node_options (static); the defaults are strings.
// clang-format off
#define NODE_OPTION_ROWS(o, default_token_budget, default_max_seqs)                                                    \
    {.name = "-Model"},                                                                                                \
    {.name = "model", .type = OPTION_STRING, .value = &(o).model, .help = "checkpoint directory (required)"},          \
    {.name = "shape", .type = OPTION_STRING, .value = &(o).shape,                                                      \
     .help = "to measure: a config.json to run with random weights; --model then gives the tokenizer alone"},          \
    {.name = "load", .type = OPTION_CHOICE, .value = &(o).load, .default_text = "auto", .choices = "auto|dummy",       \
     .help = "to measure: dummy makes random weights, --model needs no checkpoint"},                                   \
    {.name = "backend", .type = OPTION_CHOICE, .value = &(o).backend, .default_text = "auto",                          \
     .choices = MODEL_BACKENDS, .help = "what computes; auto: a GPU for each rank, or else the CPU"},                  \
    {.name = "dtype", .type = OPTION_CHOICE, .value = &(o).dtype, .default_text = "auto", .choices = MODEL_DTYPES,  \
     .help = "type that weights are computed in; auto: the checkpoint's"},                                             \
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &(o).kv_dtype, .default_text = "auto", .choices = MODEL_KV_DTYPES, \
     .help = "type of the KV cache; auto: f32 with f32 weights, else bf16. int8 halves it"},                           \
    {.name = "packed-cache", .type = OPTION_STRING, .value = &(o).packed_cache, .default_text = "off",                 \
     .help = "keep packed weights for the next start: a folder, auto (beside the checkpoint) or off"},                 \
    {.name = "threads", .type = OPTION_INT, .value = &(o).threads, .default_text = "0", .max = 4096,                   \
     .help = "compute threads of each rank; 0: its share of the cores"},                                               \
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &(o).token_budget, .default_text = default_token_budget,     \
     .min = 1, .max = MODEL_ROWS_MAX, .unit = "tokens", .help = "rows of one forward pass at most; longer prompts are chunked"}, \
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &(o).max_seqs, .default_text = default_max_seqs,                 \
     .min = 1, .max = MODEL_SEQS_MAX, .help = "sequences at once at most"},                                            \
    {.name = "max-model-len", .type = OPTION_INT, .value = &(o).max_context, .default_text = "0", .max = 10000000,       \
     .unit = "tokens", .help = "longest sequence; 0: what the model allows"},                                          \
    {.name = "kv-blocks", .type = OPTION_INT, .value = &(o).kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX, \
     .unit = "blocks of 16 tokens", .help = "KV cache; 0: a full context per sequence, at most 1 GiB; on a GPU gpu-memory-utilization"}, \
    {.name = "gpu-memory-utilization", .type = OPTION_REAL, .value = &(o).gpu_memory_utilization, .default_text = "0.9", .min = 0.01, .max = 1, \
     .help = "of a GPU's memory that this process may take: what weights and working memory leave of it is KV cache"}, \
    {.name = "overlap-rows", .type = OPTION_INT, .value = &(o).overlap_rows, .default_text = "1024", .min = 1,         \
     .max = MODEL_ROWS_MAX, .unit = "tokens",                                                                          \
     .help = "several GPUs: of passes of twice as many or more, one half is summed over GPUs while the other computes"}, \
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &(o).prefix_cache, .default_text = "true", \
     .help = "full KV blocks of prompts and answers serve those that begin with the same tokens"}, \
    {.name = "-Cluster"},                                                                                              \
    {.name = "router", .type = OPTION_STRING, .value = &(o).router, .help = "the router, HOST:PORT (required)"},       \
    {.name = "allreduce-dtype", .type = OPTION_CHOICE, .value = &(o).allreduce_dtype, .default_text = "f32", .choices = "f32|bf16",          \
     .help = "what ranks on several hosts send each other; bf16: half the bytes, activations rounded; not on GPUs"},   \
    {.name = "node-id", .type = OPTION_STRING, .value = &(o).node_id, .help = "name; default: role, host, pid"},       \
    {.name = "log-level", .type = OPTION_CHOICE, .value = &(o).log_level, .default_text = "info",                      \
     .choices = "error|warn|info|debug", .help = "how much is logged"}
// clang-format on

// The limits a node really has, once its model is open.
struct node_limits {
    int context_tokens; // longest sequence: the model's, max_context or the whole KV cache, whichever is least
    int token_budget, max_seqs, kv_blocks;
    bool prefix_cache;
};
struct node_limits node_limits_get(const struct node_options *options, const struct model *model);

struct model_options node_model_options(const struct node_options *options);

// Fills a Hello from the options, the open model and its files (fingerprints of
// weights and tokenizer). Strings and arrays are borrowed from options, model and static memory.
enum status node_hello_fill(Forepack__Cluster__V1__Hello *hello, const struct node_options *options,
                            const struct model *model, const struct comm *comm, Forepack__Cluster__V1__Role role);

// What serve() ended with.
enum node_end {
    NODE_END_DRAINED, // all work done after NODE_DRAIN: exit 0
    NODE_END_REFUSED, // NODE_REFUSED, its reason logged: exit 2
    NODE_END_BROKEN,  // a step failed, reason logged: the group is ended at once, exit 1
};

struct node_program {
    const char *name; // "speculator", "worker": in logs and node ids
    Forepack__Cluster__V1__Role role;
    const char *usage; // first lines of --help
    const struct option *options;
    const struct node_options *common; // where NODE_OPTION_ROWS of `options` put the values
    // Checks the options against each other before anything is opened: STATUS_INVALID and a sentence; may be NULL.
    enum status (*check)(void);
    // The leader's working thread: takes events with node_next() until it must end. The model is open and warm, the
    // node attached or dialling. Followers are in engine_follow() meanwhile.
    enum node_end (*serve)(struct engine *engine, struct node *node, const struct node_limits *limits);
};

// Blocks signals, parses, joins the MPI job, opens the model on every rank, runs one row through it, dials the router
// and serves. Returns the exit code of the process: 0 done, 1 failed, 2 wrong usage or configuration.
int node_main(const struct node_program *program, int argc, char **argv);
