// SPDX-License-Identifier: Apache-2.0
#include "cli/up_arguments.h"

#include <inttypes.h>
#include <string.h>

#include "lib/base/cpu_limits.h"
#include "lib/base/mem.h"
#include "lib/base/program_path.h"
#include "lib/text/generation.h"
#include "lib/text/limits.h"

struct up_flags up_flags;

// clang-format off
const struct option up_options[] = {
    {.name = "-Models"},
    {.name = "main", .type = OPTION_STRING, .value = &up_flags.main, .placeholder = "DIR",
     .help = "checkpoint of the main model; default the demo model"},
    {.name = "spec", .type = OPTION_STRING, .value = &up_flags.spec, .placeholder = "DIR",
     .help = "checkpoint of the speculators' model; default the demo speculator if --main is not given, else none"},
    {.name = "shape", .type = OPTION_STRING, .value = &up_flags.shape, .placeholder = "FILE",
     .help = "for measurements: config.json of a model that the workers run with random weights; --main then gives "
             "the tokenizer only"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &up_flags.spec_shape, .placeholder = "FILE",
     .help = "for measurements: config.json for the speculators; the vocabulary must be the same as that of --shape"},
    {.name = "load", .type = OPTION_CHOICE, .value = &up_flags.load, .default_text = "auto", .choices = "auto|dummy",
     .help = "dummy: for measurements, random weights of the shape of --main and --spec; reads no weights"},
    {.name = "served-model-name", .type = OPTION_LIST, .value = &up_flags.model_names, .placeholder = "NAME",
     .help = "model name that clients may ask for; give the option once for each name. Default: name of the --main directory"},
    {.name = "chat-template", .type = OPTION_STRING, .value = &up_flags.chat_template, .placeholder = "FILE",
     .help = "Jinja chat template to use instead of the model's template"},
    IMAGE_TEXT_ROW(up_flags.clients),
    {.name = "packed-cache", .type = OPTION_STRING, .value = &up_flags.packed_cache, .default_text = "off",
     .placeholder = "DIR", .help = "directory that keeps packed weights for the next start; auto: next to the checkpoint"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &up_flags.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "backend of all nodes; auto: one GPU per rank if there are GPUs, else the CPU"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &up_flags.dtype, .default_text = "auto", .choices = MODEL_DTYPES,
     .help = "data type for model weights; auto: as in the checkpoint"},
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &up_flags.kv_dtype, .default_text = "auto",
     .choices = MODEL_KV_DTYPES,
     .help = "data type for the KV cache of the workers; auto: f32 with f32 weights, else bf16"},
    {.name = "-Processes"},
    {.name = "workers", .type = OPTION_INT, .value = &up_flags.workers, .default_text = "1", .min = 1, .max = UP_NODES_MAX,
     .unit = "groups", .help = "number of worker groups"},
    {.name = "tp", .type = OPTION_INT, .value = &up_flags.tp, .default_text = "1", .min = 1, .max = 64, .unit = "ranks",
     .help = "tensor-parallel ranks of a worker group"},
    {.name = "pp", .type = OPTION_INT, .value = &up_flags.pp, .default_text = "1", .min = 1, .max = 64, .unit = "stages",
     .help = "pipeline stages of a worker group, each of --tp ranks"},
    {.name = "speculators", .type = OPTION_INT, .value = &up_flags.speculators, .default_text = "1", .max = UP_NODES_MAX,
     .help = "number of speculators; 0: no speculative prefill"},
    {.name = "spec-tp", .type = OPTION_INT, .value = &up_flags.spec_tp, .default_text = "1", .min = 1, .max = 64,
     .unit = "ranks", .help = "tensor-parallel ranks of a speculator"},
    {.name = "threads", .type = OPTION_INT, .value = &up_flags.threads, .default_text = "0", .max = 4096,
     .help = "compute threads of a rank; 0: the cores divided by the ranks of the larger pool"},
    {.name = "cpus", .type = OPTION_STRING, .value = &up_flags.cpus, .placeholder = "LIST",
     .help = "cores that the cluster may use, such as 0-3,8; its nodes divide them; default: the affinity mask"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &up_flags.token_budget, .default_text = "2048", .min = 1,
     .max = MODEL_ROWS_MAX, .unit = "tokens", .help = "maximum number of tokens of a forward pass, and of a bin"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &up_flags.max_seqs, .default_text = "64", .min = 1,
     .max = MODEL_SEQS_MAX, .unit = "sequences", .help = "maximum number of sequences of a node"},
    {.name = "kv-blocks", .type = OPTION_INT, .value = &up_flags.kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX,
     .unit = "blocks", .help = "KV cache of a worker group; 0: on GPUs the memory that is left to the group, on the CPU "
                               "a full context per sequence, at most 1 GiB"},
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &up_flags.prefix_cache, .default_text = "true",
     .help = "reuse the KV blocks of prompts that start with the same tokens"},
    {.name = "itl-target-ms", .type = OPTION_INT, .value = &up_flags.itl_target_ms, .default_text = "0", .max = 3600000,
     .unit = "ms", .help = "target duration of a mixed pass, which limits its prompt tokens; 0: twice the duration of "
                           "its decodes"},
    {.name = "-Network"},
    {.name = "host", .type = OPTION_STRING, .value = &up_flags.host, .default_text = "127.0.0.1", .placeholder = "HOST",
     .help = "address that the router listens on"},
    {.name = "port", .type = OPTION_INT, .value = &up_flags.port, .default_text = "50051", .min = 1, .max = 65535,
     .help = "gRPC port of the router"},
    {.name = "http-port", .type = OPTION_INT, .value = &up_flags.http_port, .default_text = "8000", .min = -1, .max = 65535,
     .help = "port of the router's HTTP API; 0: a free port, which the log names; -1: no HTTP API"},
    {.name = "node-port", .type = OPTION_INT, .value = &up_flags.node_port, .default_text = "0", .max = 65535,
     .help = "port on loopback at which the nodes attach to the router; 0: the port after --port"},
    {.name = "api-keys", .type = OPTION_STRING, .value = &up_flags.api_keys, .placeholder = "FILE",
     .help = "file of API keys, made with forepack keys: clients must send one of them; default: every client is allowed"},
    {.name = "tls-cert", .type = OPTION_STRING, .value = &up_flags.tls_cert, .placeholder = "FILE",
     .help = "serve clients with TLS; the router's certificate, in PEM"},
    {.name = "tls-key", .type = OPTION_STRING, .value = &up_flags.tls_key, .placeholder = "FILE",
     .help = "private key of --tls-cert, in PEM"},
    {.name = "tls-client-ca", .type = OPTION_STRING, .value = &up_flags.tls_client_ca, .placeholder = "FILE",
     .help = "serve only clients with a certificate of these authorities, in PEM"},
    {.name = "cluster-token-file", .type = OPTION_STRING, .value = &up_flags.token_file, .placeholder = "FILE",
     .help = "cluster token of router and nodes; default: a random one, in a private folder that is removed at the "
             "end"},
    {.name = "insecure", .type = OPTION_BOOL, .value = &up_flags.insecure,
     .help = "allow a --host beyond loopback without TLS"},
    {.name = "-Behaviour"},
    {.name = "prefill", .type = OPTION_CHOICE, .value = &up_flags.prefill, .choices = PREFILL_MODES,
     .help = "default for requests that give neither a prefill mode, a quality nor a keep rate; default auto with the "
             "demo models, else off"},
    {.name = "drafts", .type = OPTION_CHOICE, .value = &up_flags.drafts, .default_text = "auto", .choices = DRAFT_MODES,
     .help = "for requests that do not set `drafts`; auto: answers use draft tokens (speculative decoding); off: they do "
             "not"},
    CLIENT_RULE_ROWS(up_flags.clients),
    {.name = "quality", .type = OPTION_REAL, .value = &up_flags.quality, .default_text = "0.99", .min = 1e-6, .max = 1,
     .help = "share of the answers that are right with the whole prompt and must stay right, for requests that give "
             "neither a quality nor a keep rate; without a calibration of the speculator (forepack calibrate) every token "
             "is kept"},
    {.name = "keep-rate", .type = OPTION_REAL, .value = &up_flags.keep_rate, .min = 1e-6, .max = 1,
     .help = "fixed keep rate, used instead of --quality, for requests that give neither a quality nor a keep rate"},
    {.name = "speculate-min-tokens", .type = OPTION_INT, .value = &up_flags.speculate_min_tokens, .default_text = "512", .max = 1e9,
     .unit = "tokens", .help = "minimum prompt length for speculation with --prefill auto"},
    {.name = "score-timeout-ms", .type = OPTION_INT, .value = &up_flags.score_timeout_ms, .default_text = "10000", .min = 1,
     .max = 3600000, .unit = "ms", .help = "longest wait of a prompt for a speculator; the score may then take this "
                                           "long plus four times its expected time; after either time, the prompt "
                                           "is prefilled whole"},
    {.name = "drain-ms", .type = OPTION_INT, .value = &up_flags.drain_ms, .default_text = "30000", .max = 3600000,
     .unit = "ms", .help = "time for running requests to end after Ctrl-C; a second Ctrl-C ends them immediately"},
    {.name = "-Further options"},
    {.name = "router-option", .type = OPTION_LIST, .value = &up_flags.router_options, .placeholder = "NAME=VALUE",
     .help = "set any other option of forepack-router, such as max-wait-ms=100"},
    {.name = "worker-option", .type = OPTION_LIST, .value = &up_flags.worker_options, .placeholder = "NAME=VALUE",
     .help = "set any other option of forepack-worker"},
    {.name = "speculator-option", .type = OPTION_LIST, .value = &up_flags.speculator_options, .placeholder = "NAME=VALUE",
     .help = "set any other option of forepack-speculator"},
    {.name = "-Logging"},
    {.name = "verbose", .type = OPTION_BOOL, .value = &up_flags.verbose,
     .help = "in a terminal, show the log instead of writing it to a file"},
    LOG_OPTION_ROWS(up_flags.log),
    {0},
};
// clang-format on

// Options that are passed to the programs under the same name.
static const char *const of_router[] = {"served-model-name",
                                        "shape",
                                        "chat-template",
                                        "image-text",
                                        "host",
                                        "port",
                                        "http-port",
                                        "api-keys",
                                        "tls-cert",
                                        "tls-key",
                                        "tls-client-ca",
                                        "insecure",
                                        "prefill",
                                        "drafts",
                                        "prune-rule",
                                        "drafts-rule",
                                        "quality",
                                        "keep-rate",
                                        "speculate-min-tokens",
                                        "score-timeout-ms",
                                        "drain-ms",
                                        "log-level",
                                        "log-format",
                                        NULL};
static const char *const of_nodes[] = {
    "load", "packed-cache", "backend",    "dtype", "max-num-batched-tokens", "max-num-seqs", "enable-prefix-caching",
    "cpus", "log-level",    "log-format", NULL};
static const char *const of_workers[] = {"kv-cache-dtype", "kv-blocks", "itl-target-ms", NULL};

struct arguments {
    char **items; // [n] followed by NULL
    int n;
};

// Adds `text` and takes ownership of it.
static void argument_add_owned(struct arguments *a, char *text)
{
    a->items = mem_resize(a->items, (size_t)a->n + 2, sizeof *a->items);
    a->items[a->n++] = text;
    a->items[a->n] = NULL;
}

static void argument_add(struct arguments *a, const char *text)
{
    argument_add_owned(a, mem_string(text));
}

static void argument_add_text(struct arguments *a, const char *flag, const char *value)
{
    argument_add(a, flag);
    argument_add(a, value);
}

static void argument_add_number(struct arguments *a, const char *flag, int64_t value)
{
    argument_add(a, flag);
    argument_add_owned(a, mem_format("%lld", (long long)value));
}

static void argument_add_option(struct arguments *a, const struct option *row)
{
    switch (row->type) {
    case OPTION_BOOL: argument_add_owned(a, mem_format("--%s%s", *(bool *)row->value ? "" : "no-", row->name)); break;
    case OPTION_INT: argument_add_owned(a, mem_format("--%s=%" PRId64, row->name, *(int64_t *)row->value)); break;
    case OPTION_REAL:
        if (row->default_text || options_given(up_options, row->name))
            argument_add_owned(a, mem_format("--%s=%.17g", row->name, *(double *)row->value));
        break;
    case OPTION_LIST: {
        const struct option_list *list = row->value;
        for (int i = 0; i < list->count; i++)
            argument_add_owned(a, mem_format("--%s=%s", row->name, list->items[i]));
        break;
    }
    default:
        if (*(char **)row->value) argument_add_owned(a, mem_format("--%s=%s", row->name, *(char **)row->value));
    }
}

static void arguments_pass(struct arguments *a, const char *const *names)
{
    for (; *names; names++) {
        const struct option *row = up_options;
        while (strcmp(row->name, *names) != 0)
            row++;
        argument_add_option(a, row);
    }
}

static void arguments_add_further(struct arguments *a, const struct option_list *further)
{
    for (int i = 0; i < further->count; i++)
        argument_add_owned(a, mem_format("--%s", further->items[i]));
}

int up_ranks(void)
{
    return (int)(up_flags.workers * up_flags.tp * up_flags.pp + up_flags.speculators * up_flags.spec_tp);
}

// Returns --threads or, if that is 0, the cores divided by the ranks of the larger pool, because the two pools seldom
// compute at the same time.
int64_t up_rank_threads(void)
{
    if (up_flags.threads) return up_flags.threads;
    int64_t cores = cpu_limits_threads(1, 1);
    int64_t ranks = up_flags.workers * up_flags.tp * up_flags.pp > up_flags.speculators * up_flags.spec_tp
                        ? up_flags.workers * up_flags.tp * up_flags.pp
                        : up_flags.speculators * up_flags.spec_tp;
    return cores / ranks > 1 ? cores / ranks : 1;
}

char *up_node_address(void)
{
    return mem_format("127.0.0.1:%lld", (long long)up_flags.node_port);
}

char **up_router_arguments(void)
{
    struct arguments list = {0}, *a = &list;
    argument_add_owned(a, program_path("forepack-router"));
    argument_add_text(a, "--model", up_flags.main);
    argument_add(a, "--node-listen");
    argument_add_owned(a, up_node_address());
    argument_add_text(a, "--cluster-token-file", up_flags.token_file);
    arguments_pass(a, of_router);
    arguments_add_further(a, &up_flags.router_options);
    return a->items;
}

char **up_node_arguments(const struct child *c)
{
    struct arguments list = {0}, *a = &list;
    bool worker = strcmp(c->role, "worker") == 0;
    if (c->ranks > 1) {
        argument_add(a, "mpirun");
        argument_add_number(a, "-n", c->ranks);
        argument_add(a, "--oversubscribe");
        argument_add_text(a, "--bind-to", "none"); // mpirun's default binds all compute threads of a rank to one core
    }
    argument_add_owned(a, program_path(worker ? "forepack-worker" : "forepack-speculator"));
    argument_add_text(a, "--model", worker ? up_flags.main : up_flags.spec);
    const char *shape = worker ? up_flags.shape : up_flags.spec_shape;
    if (shape) argument_add_text(a, "--shape", shape);
    argument_add(a, "--router");
    argument_add_owned(a, up_node_address());
    argument_add_text(a, "--cluster-token-file", up_flags.token_file);
    argument_add(a, "--node-id");
    argument_add_owned(a, mem_format("%s-%d", c->role, c->index));
    if (c->gpus.nodes > 1) {
        argument_add(a, "--gpu-memory-utilization");
        argument_add_owned(a, mem_format("%.3f", MODEL_GPU_MEMORY_UTILIZATION / c->gpus.nodes));
    }
    argument_add_number(a, "--threads", up_rank_threads());
    arguments_pass(a, of_nodes);
    if (worker) arguments_pass(a, of_workers);
    if (worker && up_flags.pp > 1) argument_add_number(a, "--pp", up_flags.pp);
    arguments_add_further(a, worker ? &up_flags.worker_options : &up_flags.speculator_options);
    return a->items;
}
