// SPDX-License-Identifier: Apache-2.0
// forepack-router: takes requests, packs them, sends them to speculators and worker groups, streams answers back.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log_options.h"
#include "base/mem.h"
#include "router/front/intake.h"

static struct {
    char *model, *shape, *model_name, *host, *policy, *tenant_weights;
    int64_t port, max_queue_requests, max_queue_tokens, max_wait_ms, score_timeout_ms, worker_grace_ms, heartbeat_ms;
    int64_t min_tokens, tail_tokens, bins_ahead, batch_requests, queue_reserve, drain_ms, max_message_mb;
    struct log_options log;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model,
     .help = "directory of the main model: config.json, tokenizer.json (required; weights are not read)"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape,
     .help = "to measure: a config.json in place of the model's, the same that the nodes have"},
    {.name = "served-model-name", .type = OPTION_STRING, .value = &o.model_name,
     .help = "name that clients ask for; default the directory's"},
    {.name = "-Network"},
    {.name = "host", .type = OPTION_STRING, .value = &o.host, .default_text = "127.0.0.1",
     .help = "address to listen on; 0.0.0.0 or [::] for all"},
    {.name = "port", .type = OPTION_INT, .value = &o.port, .default_text = "50051", .max = 65535,
     .help = "gRPC port for clients and nodes; 0 picks one"},
    {.name = "max-message-mb", .type = OPTION_INT, .value = &o.max_message_mb, .default_text = "64", .min = 1,
     .max = 1024, .unit = "MiB", .help = "largest message of a client; of unfinished ones four times that in all"},
    {.name = "-Queue and packing"},
    {.name = "max-queue-requests", .type = OPTION_INT, .value = &o.max_queue_requests, .default_text = "10000",
     .min = 1, .max = 10000000, .unit = "requests", .help = "waiting requests; more are refused"},
    {.name = "max-queue-tokens", .type = OPTION_INT, .value = &o.max_queue_tokens, .default_text = "100000000",
     .min = 1, .max = 1e15, .unit = "tokens", .help = "prompt tokens of waiting requests; more are refused"},
    {.name = "queue-reserve", .type = OPTION_INT, .value = &o.queue_reserve, .default_text = "10", .max = 49,
     .unit = "%", .help = "of both, kept free by priority below 0 for 0 and above, and by 0 for above 0"},
    {.name = "tenant-weights", .type = OPTION_STRING, .value = &o.tenant_weights,
     .help = "NAME=W,...: shares of tenants among requests of one priority; others weigh 1"},
    {.name = "max-wait-ms", .type = OPTION_INT, .value = &o.max_wait_ms, .default_text = "500", .max = 3600000,
     .unit = "ms",
     .help = "a request that waited this long in all, or is near its deadline, goes into the next bin before others"},
    {.name = "bins-ahead", .type = OPTION_INT, .value = &o.bins_ahead, .default_text = "2", .min = 1, .max = 64,
     .unit = "bins", .help = "handed to a node before it answered the first"},
    {.name = "policy", .type = OPTION_CHOICE, .value = &o.policy, .default_text = "dataset",
     .choices = "none|batch|dataset",
     .help = "what may share a bin: nothing, an arrival batch, the whole queue; the first two are for comparison"},
    {.name = "batch-requests", .type = OPTION_INT, .value = &o.batch_requests, .default_text = "16", .min = 1,
     .max = 1000000, .unit = "requests", .help = "arrival batch of --policy batch"},
    {.name = "-Speculative prefill"},
    {.name = "min-tokens", .type = OPTION_INT, .value = &o.min_tokens, .default_text = "512", .max = 1e9,
     .unit = "tokens",
     .help = "under --prefill auto shorter prompts are not speculated, longer ones if it makes them faster"},
    {.name = "tail-tokens", .type = OPTION_INT, .value = &o.tail_tokens, .default_text = "128", .max = 1e9,
     .unit = "tokens", .help = "end of the prompt that is always kept, at most a quarter of it"},
    {.name = "score-timeout-ms", .type = OPTION_INT, .value = &o.score_timeout_ms, .default_text = "10000", .min = 1,
     .max = 3600000, .unit = "ms", .help = "a speculator that takes longer is not waited for: everything is kept"},
    {.name = "-Faults"},
    {.name = "heartbeat-ms", .type = OPTION_INT, .value = &o.heartbeat_ms, .default_text = "1000", .min = 10,
     .max = 60000, .unit = "ms", .help = "a node silent for three of these is lost"},
    {.name = "worker-grace-ms", .type = OPTION_INT, .value = &o.worker_grace_ms, .default_text = "30000",
     .max = 3600000, .unit = "ms", .help = "accepted requests wait this long for a worker group to come back"},
    {.name = "drain-ms", .type = OPTION_INT, .value = &o.drain_ms, .default_text = "30000", .max = 3600000,
     .unit = "ms", .help = "on SIGTERM running requests may take this long"},
    {.name = "-Logging"},
    LOG_OPTION_ROWS(o.log),
    {0},
};
// clang-format on

static const char usage[] = "Usage: forepack-router --model DIR [options]\n"
                            "The router of a Forepack cluster: clients and nodes connect to it. SIGTERM drains it.";

static const char *base_name(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return mem_format("%.*s", (int)(length - start), path + start);
}

static enum bin_policy policy_of(const char *name)
{
    return strcmp(name, "none") == 0 ? BIN_NONE : strcmp(name, "batch") == 0 ? BIN_BATCH : BIN_DATASET;
}

// NAME=W,NAME=W: the names are parts of `text`, which is cut up.
static enum status read_weights(char *text, struct tenant_weight **weights_p, int *n_p)
{
    int n = 0, capacity = 0;
    struct tenant_weight *weights = NULL;
    for (char *rest = text, *part; (part = strsep(&rest, ","));) {
        char *equals = strrchr(part, '='), *end = "";
        double weight = equals ? strtod(equals + 1, &end) : 0;
        if (!equals || equals == part || *end || !(weight >= 0.001 && weight <= 1000)) {
            free(weights);
            return status_fail(STATUS_INVALID, "--tenant-weights: \"%s\": must be NAME=W with W from 0.001 to 1000",
                               part);
        }
        *equals = 0;
        MEM_GROW(weights, n, capacity);
        weights[n++] = (struct tenant_weight){part, weight};
    }
    *weights_p = weights;
    *n_p = n;
    return STATUS_OK;
}

static enum status open_front(struct front *front)
{
    if (!o.model) return status_fail(STATUS_INVALID, "--model: the main model's directory is required");
    enum status status = model_config_read(o.shape ? o.shape : o.model, &front->config);
    if (status == STATUS_OK) status = tokenizer_open(o.model, &front->tokenizer);
    if (status != STATUS_OK) return status;
    if (tokenizer_vocab_size(front->tokenizer) > front->config.vocab_size) {
        return status_fail(STATUS_DATA, "%s: tokenizer.json has token ids up to %d, config.json a vocabulary of %d",
                           o.model, tokenizer_vocab_size(front->tokenizer) - 1, front->config.vocab_size);
    }
    if (chat_template_detect(front->tokenizer, &front->chat) != STATUS_OK) {
        front->chat_problem = mem_string(status_message());
    }
    front->model_name = o.model_name ? mem_string(o.model_name) : base_name(o.model);
    front->heartbeat_ms = o.heartbeat_ms;
    front->tail_tokens = (int)o.tail_tokens;
    front->max_queue_requests = o.max_queue_requests;
    front->max_queue_tokens = o.max_queue_tokens;
    front->started_us = clock_now_us();
    return STATUS_OK;
}

static void close_front(struct front *front)
{
    chat_template_free(front->chat);
    free(front->chat_problem);
    tokenizer_free(front->tokenizer);
    free((char *)front->model_name);
}

// --- draining: poll from the main thread until the core is idle or time is up

struct idle_question {
    int answer; // -1: not yet
};

static void run_drain(struct core *c, void *arg, int64_t now_us)
{
    core_drain(c); // and health says NOT_SERVING through ready_changed
}

static void run_publish_ready(struct core *c, void *arg, int64_t now_us)
{
    front_publish_ready(arg);
}

static void run_is_idle(struct core *c, void *arg, int64_t now_us)
{
    struct idle_question *question = arg;
    __atomic_store_n(&question->answer, core_idle(c), __ATOMIC_RELEASE);
}

static void drain(struct front *front, sigset_t *signals)
{
    log_info("draining ms=%lld", (long long)o.drain_ms);
    loop_post(front->loop, run_drain, NULL);
    int64_t end_us = clock_now_us() + o.drain_ms * 1000;
    do { // at least once: afterwards the core has no more to say to the server, which may be closed
        struct idle_question question = {-1};
        loop_post(front->loop, run_is_idle, &question);
        const struct timespec moment = {.tv_nsec = 20000000};
        int signal;
        do {
            signal = sigtimedwait(signals, NULL, &moment); // a second signal quits at once
            if (signal > 0) end_us = 0;
        } while (__atomic_load_n(&question.answer, __ATOMIC_ACQUIRE) < 0);
        if (question.answer) return;
    } while (clock_now_us() < end_us);
}

int main(int argc, char **argv)
{
    options_main(options, usage, argc, argv, NULL);
    log_options_apply(&o.log, "router");
    options_log(options);

    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);

    struct front front = {0};
    char *weights_text = o.tenant_weights ? mem_string(o.tenant_weights) : NULL;
    struct tenant_weight *weights = NULL;
    int n_weights = 0;
    if (read_weights(weights_text, &weights, &n_weights) != STATUS_OK || open_front(&front) != STATUS_OK) {
        log_error("%s", status_message());
        close_front(&front);
        free(weights);
        free(weights_text);
        options_free(options);
        return 2;
    }
    struct core_ops ops;
    attach_core_ops(&front, &ops);
    const struct core_options core_options = {
        .max_queue_requests = (int)o.max_queue_requests,
        .max_queue_tokens = o.max_queue_tokens,
        .queue_reserve_percent = (int)o.queue_reserve,
        .tenant_weights = weights,
        .n_tenant_weights = n_weights,
        .max_wait_us = o.max_wait_ms * 1000,
        .score_timeout_us = o.score_timeout_ms * 1000,
        .worker_grace_us = o.worker_grace_ms * 1000,
        .heartbeat_us = o.heartbeat_ms * 1000,
        .min_tokens = (int)o.min_tokens,
        .tail_tokens = (int)o.tail_tokens,
        .bins_ahead = (int)o.bins_ahead,
        .policy = policy_of(o.policy),
        .batch_requests = (int)o.batch_requests,
        .tokenizer_fingerprint = tokenizer_fingerprint(front.tokenizer),
        .vocab_size = front.config.vocab_size,
    };
    struct core *core = core_create(&core_options, &ops);
    front.loop = loop_start(core);

    rpc_init();
    const struct rpc_method methods[] = {
        front_generate,   front_generate_many, front_abort,        front_score,  front_tokenize,
        front_detokenize, front_model_info,    front_cluster_info, front_attach, {0},
    };
    char *address = mem_format("%s:%lld", o.host, (long long)o.port);
    const struct rpc_server_options server_options = {
        .address = address,
        .methods = methods,
        .context = &front,
        .max_message_bytes = (size_t)o.max_message_mb << 20,
    };
    int code = 0;
    struct rpc_server *server;
    if (rpc_server_open(&server_options, &server) != STATUS_OK) {
        log_error("%s", status_message());
        code = 2;
    } else {
        __atomic_store_n(&front.server, server, __ATOMIC_RELEASE);
        loop_post(front.loop, run_publish_ready, &front);
        log_info("serving model=%s address=%s:%d context=%d vocab=%d chat=%s", front.model_name, o.host,
                 rpc_server_port(server), front.config.max_context, front.config.vocab_size,
                 front.chat ? chat_template_name(front.chat) : "none");
        int signal;
        sigwait(&signals, &signal);
        drain(&front, &signals);
        rpc_server_close(server, 1000);
    }
    loop_stop(front.loop);
    core_free(core);
    rpc_shutdown();
    close_front(&front);
    free(weights);
    free(weights_text);
    free(address);
    options_free(options);
    log_info("stopped");
    return code;
}
