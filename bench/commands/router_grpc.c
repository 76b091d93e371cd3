// SPDX-License-Identifier: Apache-2.0
// forepack bench router-grpc: measures what a whole router process adds to a request. Starts a router, attaches a node
// that answers immediately (fake_node.h), and sends Generate calls at fixed times from several connections. Latencies
// count from the time at which a request was due. CPU time is measured for the router process.
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/bench.h"
#include "bench/commands/fake_node.h"
#include "bench/commands/paced_calls.h"
#include "bench/commands/router_large.h"
#include "cli/request.h"
#include "engine/node.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

static struct {
    char *model, *shape, *config, *rate, *prompt, *log;
    int64_t prompt_tokens, output_tokens, connections, concurrency, core, tokenise_threads, large_mb, at_once;
    double seconds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Router"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory of the router (required)"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .help = "config.json for the router, for a longer context"},
    {.name = "core", .type = OPTION_INT, .value = &o.core, .default_text = "0", .min = -1, .max = CPU_SETSIZE - 1,
     .help = "the only core that the router may use; -1: any"},
    {.name = "tokenise-threads", .type = OPTION_INT, .value = &o.tokenise_threads, .default_text = "0", .max = 1024,
     .help = "tokeniser threads of the router; 0: its default"},
    ROUTER_FILE_OPTION_ROWS(o),
    {.name = "-Requests"},
    {.name = "rate", .type = OPTION_STRING, .value = &o.rate, .default_text = "2500,5000", .unit = "requests/s",
     .help = "arrival rates, comma-separated, one row each"},
    {.name = "seconds", .type = OPTION_REAL, .value = &o.seconds, .default_text = "5", .min = 0.01, .max = 3600, .unit = "s",
     .help = "time over which the requests of a row arrive; an uncounted tenth of this time comes before it"},
    {.name = "prompt", .type = OPTION_CHOICE, .value = &o.prompt, .default_text = "ids", .choices = "ids|text",
     .help = "prompts as token ids or as text of about as many tokens"},
    {.name = "prompt-tokens", .type = OPTION_INT, .value = &o.prompt_tokens, .default_text = "100", .min = 1, .max = 1 << 20,
     .unit = "tokens", .help = "length of the prompts"},
    {.name = "output-tokens", .type = OPTION_INT, .value = &o.output_tokens, .default_text = "1", .min = 1, .max = 1000000,
     .unit = "tokens", .help = "length of the answers"},
    {.name = "connections", .type = OPTION_INT, .value = &o.connections, .default_text = "4", .min = 1, .max = 1000,
     .help = "connections of the clients"},
    {.name = "concurrency", .type = OPTION_INT, .value = &o.concurrency, .default_text = "64", .min = 1, .max = 4096,
     .help = "limit of concurrent calls; further requests wait at the client, and the wait counts"},
    {.name = "-During a running stream, instead of requests at a rate"},
    {.name = "large-mb", .type = OPTION_INT, .value = &o.large_mb, .default_text = "0", .max = 1024, .unit = "MiB",
     .help = "three chat messages of this size, far over the context"},
    {.name = "at-once", .type = OPTION_INT, .value = &o.at_once, .default_text = "0", .max = 4096, .unit = "requests",
     .help = "requests of --prompt and --prompt-tokens, all sent together"},
    {.name = "-Output"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

#define GENERATE "/forepack.v1.Inference/Generate"

enum { PACE_MS = 10, LARGE_CALLS = 3 };

// ---- requests -------------------------------------------------------------------------------------------------------

// Returns text of about `n` tokens, as the router counts them.
static char *make_text(struct rpc_channel *channel, int64_t n)
{
    static const char part[] = "The keeper of the lighthouse wrote 12 lines about the sea and the weather, as always. ";
    Forepack__V1__TokenizeRequest request = FOREPACK__V1__TOKENIZE_REQUEST__INIT;
    request.text = (ProtobufCBinaryData){sizeof part - 1, (uint8_t *)part};
    request.no_special = true;
    uint8_t bytes[512];
    size_t size = forepack__v1__tokenize_request__pack(&request, bytes), tokens = sizeof part / 4;
    struct rpc_bytes answer;
    if (rpc_unary(channel, "/forepack.v1.Inference/Tokenize", bytes, size, 10000, &answer) == STATUS_OK) {
        Forepack__V1__TokenizeResponse *m = forepack__v1__tokenize_response__unpack(NULL, answer.size, answer.data);
        if (m && m->n_token_ids) tokens = m->n_token_ids;
        if (m) forepack__v1__tokenize_response__free_unpacked(m, NULL);
        rpc_bytes_free(&answer);
    }
    size_t n_bytes = (size_t)n * (sizeof part - 1) / tokens;
    char *text = mem_alloc(n_bytes + 1);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = part[i % (sizeof part - 1)];
    return text;
}

static struct rpc_bytes make_message(struct rpc_channel *channel)
{
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    sampling.max_tokens_given_case = FOREPACK__V1__SAMPLING_OPTIONS__MAX_TOKENS_GIVEN_MAX_TOKENS;
    sampling.max_tokens = (uint32_t)o.output_tokens;
    sampling.ignore_eos = true;
    Forepack__V1__GenerateRequest request = FOREPACK__V1__GENERATE_REQUEST__INIT;
    request.sampling = &sampling;
    char *text = NULL;
    uint32_t *ids = NULL;
    if (strcmp(o.prompt, "text") == 0) {
        text = make_text(channel, o.prompt_tokens);
        request.text = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    } else {
        ids = mem_alloc_array((size_t)o.prompt_tokens, sizeof *ids);
        for (int64_t i = 0; i < o.prompt_tokens; i++)
            ids[i] = (uint32_t)(i * 37 % 1000);
        request.token_ids = ids;
        request.n_token_ids = (size_t)o.prompt_tokens;
    }
    struct rpc_bytes message = {.size = forepack__v1__generate_request__get_packed_size(&request)};
    message.data = mem_resize(NULL, message.size, 1);
    forepack__v1__generate_request__pack(&request, message.data);
    free(ids);
    free(text);
    return message;
}

// ---- load -----------------------------------------------------------------------------------------------------------

struct clients {
    struct rpc_channel **channels; // [o.connections]
    struct rpc_bytes message;
};

static enum status call_run(void *user, int thread, int i)
{
    struct clients *clients = user;
    struct rpc_stream *stream;
    TRY(rpc_stream_open(clients->channels[i % o.connections], GENERATE, 0, false, &stream));
    rpc_stream_send(stream, clients->message.data, clients->message.size);
    rpc_stream_half_close(stream);
    enum status status;
    struct rpc_bytes bytes;
    while ((status = rpc_stream_read(stream, &bytes)) == STATUS_OK && bytes.data)
        rpc_bytes_free(&bytes);
    rpc_stream_close(stream);
    return status;
}

static enum status measure_rates(const struct router_process *router, json_t *rows)
{
    struct clients clients = {.channels = mem_alloc_array((size_t)o.connections, sizeof(struct rpc_channel *))};
    enum status status = STATUS_OK;
    for (int i = 0; i < o.connections && status == STATUS_OK; i++)
        status = router_process_channel(router, &clients.channels[i]);
    if (status == STATUS_OK) {
        clients.message = make_message(clients.channels[0]);
        const struct paced_calls calls = {o.rate, o.seconds, (int)o.concurrency, o.json, call_run, &clients};
        status = paced_calls_run(&calls, router, rows);
        rpc_bytes_free(&clients.message);
    }
    for (int i = 0; i < o.connections; i++)
        rpc_channel_close(clients.channels[i]);
    free(clients.channels);
    return status;
}

static enum status measure(const struct router_process *router, const struct router_large *large,
                           const struct large_sender *sender, json_t *rows)
{
    static struct fake_pace pace = {.interval_ms = PACE_MS};
    struct fake_node *node = NULL;
    enum status status = router_process_wait(router, false);
    if (status == STATUS_OK) status = fake_node_open(router, large->calls ? &pace : NULL, &node);
    if (status == STATUS_OK) status = router_process_wait(router, true);
    if (status == STATUS_OK)
        status = large->calls ? router_large_measure(large, router, sender, rows) : measure_rates(router, rows);
    fake_node_close(node);
    return status;
}

int bench_router_grpc(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack bench router-grpc --model DIR [--rate 2500,5000 | --large-mb 60 | --at-once 100] [options]\n"
        "Latency, throughput and CPU time that a router adds, with a node that answers immediately.",
        argc, argv, NULL);
    json_t *rows = json_array();
    struct router_process router = {0};
    const struct router_process_options router_options = {.model = o.model,
                                                          .shape = o.shape,
                                                          .config = o.config,
                                                          .log = o.log,
                                                          .core = (int)o.core,
                                                          .n_cores = 1,
                                                          .tokenise_threads = o.tokenise_threads};
    enum status status = o.model ? router_process_start(&router_options, &router)
                                 : status_fail(STATUS_INVALID, "--model DIR is required");
    const struct router_large large = {o.large_mb, o.large_mb ? LARGE_CALLS : (int)o.at_once, make_message, o.json};
    struct large_sender sender = {0};
    if (status == STATUS_OK && large.calls) status = large_sender_start(&large, &router, &sender);
    if (status == STATUS_OK) {
        node_block_signals();
        rpc_init();
        status = measure(&router, &large, &sender, rows);
        rpc_shutdown();
    }
    large_sender_stop(&sender);
    router_process_stop(&router);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    json_decref(rows);
    options_free(options);
    return code;
}
