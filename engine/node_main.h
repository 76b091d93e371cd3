// SPDX-License-Identifier: Apache-2.0
// The main program of a node, shared by both roles. It parses the options of the model and the node, fills the Hello
// from them, and runs the process from its arguments to its exit code. A program adds its option table, its usage lines
// and its serving loop:
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

#include "engine/engine.h"
#include "engine/join.h"
#include "engine/model/stages.h"
#include "engine/node.h"
#include "lib/base/log_options.h"
#include "lib/base/options.h"
#include "lib/text/tokenizer.h"

// Values of NODE_OPTION_ROWS. The strings belong to the option table, and live until options_free().
struct node_options {
    char *model;  // checkpoint directory
    char *shape;  // config.json to run with random weights, or NULL; `model` then provides only the tokenizer
    char *load;   // "auto", or "dummy": random weights of the model's shape
    char *router; // see router_list.h
    char *token_file, *tls_cert, *tls_key, *tls_ca; // see struct node_router
    char *node_id;                                  // name of the node; NULL: ROLE-HOST-SUFFIX
    char *backend, *dtype, *kv_dtype, *packed_cache;
    char *cpus;                   // see cpu_limits_restrict(); NULL: every core of the affinity mask
    char *gpu_health;             // "drain", "report" or "off"
    char *gpu_fatal_xids;         // see gpu_fatal_xids_parse()
    int64_t gpu_throttle_limit_s; // see gpu_limits.throttle_us; 0: no limit
    // "auto", "f32" or "bf16". For GPU ranks see struct model_options, for CPU ranks see group_set_allreduce_bf16().
    char *allreduce_dtype;
    int64_t threads, token_budget, max_seqs, max_context, kv_blocks, overlap_rows; // as in struct model_options
    int64_t stages;                                                                // pipeline stages of a worker group
    char *stage_layers;            // see stages_divide(); NULL: as equal as possible
    int64_t group_limit_s;         // see group_open()
    double gpu_memory_utilization; // as in struct model_options
    bool prefix_cache;
    bool fp8_fast_accum; // as in struct model_options
    char *probe_listen;  // see node_probe.h; NULL: no probe port
    bool insecure;       // allows a probe port beyond loopback
    bool check_config;
    struct log_options log;
};

// Rows for a program's option table. `o` is its static struct node_options. The defaults are strings.
// clang-format off
#define NODE_OPTION_ROWS(o, default_token_budget, default_max_seqs)                                                    \
    {.name = "-Model"},                                                                                                \
    {.name = "model", .type = OPTION_STRING, .placeholder = "DIR", .value = &(o).model, .help = "checkpoint directory (required)"}, \
    {.name = "shape", .type = OPTION_STRING, .placeholder = "FILE", .value = &(o).shape,                               \
     .help = "for measurements: config.json to run with random weights; --model then provides only the tokenizer"},    \
    {.name = "load", .type = OPTION_CHOICE, .value = &(o).load, .default_text = "auto", .choices = "auto|dummy",       \
     .help = "for measurements: dummy makes random weights of the model's shape and reads no checkpoint"},             \
    {.name = "backend", .type = OPTION_CHOICE, .value = &(o).backend, .default_text = "auto",                          \
     .choices = MODEL_BACKENDS,                                                                                        \
     .help = "implementation of the forward pass; auto: cuda with one GPU for each rank, else cpu"},                   \
    {.name = "dtype", .type = OPTION_CHOICE, .value = &(o).dtype, .default_text = "auto", .choices = MODEL_DTYPES,     \
     .help = "type of weights and arithmetic; auto: as in the checkpoint"},                                            \
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &(o).kv_dtype, .default_text = "auto",                  \
     .choices = MODEL_KV_DTYPES,                                                                                       \
     .help = "type of the KV cache; auto: f32 with f32 weights, else bf16; int8 takes half of bf16"},                  \
    {.name = "packed-cache", .type = OPTION_STRING, .placeholder = "DIR", .value = &(o).packed_cache, .default_text = "off", \
     .help = "where to save packed weights for the next start: a folder, auto (next to the checkpoint) or off"},       \
    {.name = "threads", .type = OPTION_INT, .value = &(o).threads, .default_text = "0", .max = 4096,                   \
     .help = "compute threads of each rank; 0: an equal part of the host's cores"},                                    \
    {.name = "cpus", .type = OPTION_STRING, .placeholder = "LIST", .value = &(o).cpus,                                 \
     .help = "cores that the process may use, such as 0-3,8; default: the affinity mask"},                             \
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &(o).token_budget,                                 \
     .default_text = default_token_budget, .min = 1, .max = MODEL_ROWS_MAX, .unit = "tokens",                          \
     .help = "token budget: rows of one forward pass; longer prompts are prefilled in chunks"},                        \
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &(o).max_seqs, .default_text = default_max_seqs,             \
     .min = 1, .max = MODEL_SEQS_MAX, .help = "sequences that run at the same time"},                                  \
    {.name = "max-model-len", .type = OPTION_INT, .value = &(o).max_context, .default_text = "0", .max = 10000000,     \
     .unit = "tokens", .help = "context: prompt and output of one sequence; 0: the model's limit"},                    \
    {.name = "kv-blocks", .type = OPTION_INT, .value = &(o).kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX, \
     .unit = "blocks", .help = "size of the KV cache in blocks of 16 tokens; 0: on a GPU by --gpu-memory-utilization, " \
                               "else one full context per sequence, at most 1 GiB"},                                   \
    {.name = "gpu-memory-utilization", .type = OPTION_REAL, .value = &(o).gpu_memory_utilization,                      \
     .default_text = "0.9", .min = 0.01, .max = 1,                                                                     \
     .help = "fraction of a GPU's memory for this process; the KV cache gets the rest after weights and work space"},  \
    {.name = "overlap-rows", .type = OPTION_INT, .value = &(o).overlap_rows, .default_text = "1024", .min = 1,         \
     .max = MODEL_ROWS_MAX, .unit = "tokens",                                                                          \
     .help = "several GPUs: split passes of at least twice this many rows to overlap all-reduce with compute"},        \
    {.name = "fp8-fast-accum", .type = OPTION_BOOL, .value = &(o).fp8_fast_accum,                                      \
     .help = "on GPUs, add products of FP8 numbers faster and with about 14 bits instead of 24"},                      \
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &(o).prefix_cache, .default_text = "true",         \
     .help = "keep full KV blocks and reuse them for prompts that start with the same tokens"},                        \
    {.name = "-GPU health"},                                                                                           \
    {.name = "gpu-health", .type = OPTION_CHOICE, .value = &(o).gpu_health, .default_text = "drain",                   \
     .choices = "drain|report|off",                                                                                    \
     .help = "what to do when NVML reports a GPU in trouble: drain lets the node finish its requests and leave with "  \
             "exit code 1, report only logs it; off: NVML is not used"},                                               \
    {.name = "gpu-throttle-limit-s", .type = OPTION_INT, .value = &(o).gpu_throttle_limit_s, .default_text = "300",    \
     .max = 86400, .unit = "s",                                                                                        \
     .help = "time of throttling by the hardware, minus time without throttling, after which a GPU is in trouble; "    \
             "0: no limit"},                                                                                           \
    {.name = "gpu-fatal-xids", .type = OPTION_STRING, .placeholder = "LIST", .value = &(o).gpu_fatal_xids,             \
     .default_text = GPU_FATAL_XIDS_DEFAULT,                                                                           \
     .help = "errors of the driver after which a GPU is in trouble, separated by commas, or none"},                    \
    {.name = "-Cluster"},                                                                                              \
    {.name = "router", .type = OPTION_STRING, .placeholder = "LIST", .value = &(o).router,                             \
     .default_text = "127.0.0.1:50052",                                                                                \
     .help = "addresses of the routers for nodes (their --node-listen), separated by commas: HOST:PORT, "              \
             "dns:NAME:PORT for all addresses of a name, or file:PATH for the HOST:PORT in a file, both of which are " \
             "looked up again; the node attaches to each router"},                                                     \
    {.name = "cluster-token-file", .type = OPTION_STRING, .placeholder = "FILE", .value = &(o).token_file,             \
     .help = "file with the router's cluster token; read at each attempt to attach"},                                  \
    {.name = "node-tls-ca", .type = OPTION_STRING, .placeholder = "FILE", .value = &(o).tls_ca,                        \
     .help = "connect with TLS; file of authorities, in PEM, one of which has signed the router's certificate"},       \
    {.name = "node-tls-cert", .type = OPTION_STRING, .placeholder = "FILE", .value = &(o).tls_cert,                    \
     .help = "certificate of this node, in PEM, for a router with --node-tls-ca"},                                     \
    {.name = "node-tls-key", .type = OPTION_STRING, .placeholder = "FILE", .value = &(o).tls_key,                      \
     .help = "private key of --node-tls-cert, in PEM"},                                                                \
    {.name = "pp", .type = OPTION_INT, .value = &(o).stages, .default_text = "1", .min = 1, .max = MODEL_STAGES_MAX,   \
     .unit = "stages",                                                                                                 \
     .help = "pipeline stages of a worker group, which divide its ranks and layers; rank 0 is in the last stage"},     \
    {.name = "pp-layers", .type = OPTION_STRING, .placeholder = "LIST", .value = &(o).stage_layers,                    \
     .help = "numbers of layers of the stages, such as 20,12; default: as equal as the head allows"},                  \
    {.name = "group-timeout-s", .type = OPTION_INT, .value = &(o).group_limit_s, .default_text = GROUP_LIMIT_S,        \
     .max = 86400, .unit = "s",                                                                                        \
     .help = "time limit for the ranks of a group to reach each other at start; 0: no limit"},                         \
    {.name = "allreduce-dtype", .type = OPTION_CHOICE, .value = &(o).allreduce_dtype, .default_text = "auto",          \
     .choices = MODEL_ALLREDUCE_DTYPES,                                                                                \
     .help = "type in which ranks send partial sums to each other; bf16: half the bytes, rounded. auto is bf16 on "    \
             "GPUs and f32 on CPUs. CPU ranks of one host always add in f32"},                                         \
    {.name = "node-id", .type = OPTION_STRING, .placeholder = "NAME", .value = &(o).node_id,                           \
     .help = "unique name of this node; default: ROLE-HOST-SUFFIX with a random suffix"},                              \
    {.name = "probe-listen", .type = OPTION_STRING, .placeholder = "HOST:PORT", .value = &(o).probe_listen,            \
     .help = "address of a small HTTP port with /live, /ready and /metrics of this node; a port alone is one of "      \
             "loopback; port 0: a free port, which the log names; default: no such port"},                             \
    {.name = "insecure", .type = OPTION_BOOL, .value = &(o).insecure,                                                  \
     .help = "allow --probe-listen beyond loopback; the port has no TLS"},                                             \
    CHECK_CONFIG_ROWS((o).check_config),                                                                               \
    {.name = "-Logging"},                                                                                              \
    LOG_OPTION_ROWS((o).log)
// clang-format on

// The effective limits of a node, known once its model is open.
struct node_limits {
    int context_tokens; // minimum of the model's context, max_context and the size of the KV cache
    int token_budget, max_seqs, kv_blocks;
    bool prefix_cache;
};

struct model_options node_model_options(const struct node_options *options);
bool node_has_random_weights(const struct node_options *options);

// Fills a Hello from the options and from the opened model and tokenizer. Strings and arrays are borrowed from options,
// model and static memory.
void node_hello_fill(Forepack__Cluster__V1__Hello *hello, const struct node_options *options, const struct model *model,
                     const struct tokenizer *tokenizer, const struct comm *comm, Forepack__Cluster__V1__Role role);

// The reason why serve() ended.
enum node_end {
    NODE_END_DRAINED, // drained, all work is done: exit code 0, or 1 if the node leaves because of a GPU
    NODE_END_BROKEN,  // a pass failed and the reason is logged: the group ends immediately with exit code 1
};

struct node_program {
    const char *name; // "speculator" or "worker", for logs and node ids
    Forepack__Cluster__V1__Role role;
    const char *usage; // first lines of --help
    const struct option *options;
    const struct node_options *common; // the values of NODE_OPTION_ROWS in `options`
    struct join_options *join;         // the values of JOIN_OPTION_ROWS; NULL: the program has no such options
    // Returns how many rows of a pass can have logits. NULL: max_seqs, at most the token budget.
    int (*logit_rows)(int max_seqs, int token_budget);
    // Checks for conflicts between options before anything is opened. Returns STATUS_INVALID, with a status_message().
    // May be NULL.
    enum status (*check)(void);
    // Checks files that only this program reads, for --check-config. May be NULL.
    enum status (*check_files)(void);
    // Adds this program's fields to the leader's Hello, which is otherwise complete. May be NULL.
    enum status (*describe)(Forepack__Cluster__V1__Hello *hello);
    // Serves on the leader: handles events from node_next() until the node has to end. The model is open and has run
    // the passes of start_costs.h, and the node attaches in the background. Meanwhile, followers run engine_follow().
    enum node_end (*serve)(struct engine *engine, const struct tokenizer *tokenizer, struct node *node,
                           const struct node_limits *limits);
};

// Blocks signals, parses the options and joins the MPI job. Opens the tokenizer on the leader and the model on every
// rank, and measures a few passes. Then attaches to the router and serves. Returns the exit code of the process: 0 for
// success, 1 for a failure, 2 for wrong usage or configuration.
int node_main(const struct node_program *program, int argc, char **argv);
