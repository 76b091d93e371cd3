// SPDX-License-Identifier: Apache-2.0
// forepack-router: options, start, reload, drain and stop. front/ has the services, core/ the requests and nodes.
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/cpu_limits.h"
#include "lib/base/descriptors.h"
#include "lib/base/log_options.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/memory_limit.h"
#include "lib/base/service_manager.h"
#include "lib/identity/quota_keeper.h"
#include "lib/text/client_options.h"
#include "router/front/front.h"
#include "router/front/http/http_service.h"
#include "router/front/http/tokenizer_info.h"
#include "router/front/request/intake.h"
#include "router/front/request/intake_pool.h"
#include "router/front/request/parsed_message.h"
#include "router/front/request/system_turns.h"
#include "router/listen.h"
#include "router/memory_budget.h"
#include "router/service_state.h"
#include "router/shadow_options.h"
#include "router/shutdown.h"
#include "router/trace_options.h"

static struct {
    struct option_list model_names;
    char *model, *shape, *chat_template, *grammar_library, *policy, *tenant_weights, *prefill, *drafts, *api_keys;
    char *model_fingerprint, *speculator_fingerprint;
    uint64_t fingerprints[NODE_ROLES]; // parsed from the two options above; 0: any model
    struct client_options clients;
    struct listen_options listen;
    struct trace_options trace;
    struct shadow_flags shadow;
    struct shadow_options shadow_options; // read from the row above
    double keep_rate, quality;
    int64_t max_queue_requests, max_queue_tokens, max_wait_ms, score_timeout_ms, worker_grace_ms, heartbeat_ms;
    int64_t stall_timeout_ms, eject_ms;
    int64_t tokenise_threads, tokenise_queue_mb, tenant_queue_share;
    int64_t speculate_min_tokens, selection_cache_mib, tail_tokens, pinned_turn_tokens, bins_ahead, batch_requests,
        queue_reserve, shutdown_delay_ms, drain_ms;
    bool mixed_numerics, share_prefix_cache, close_schemas;
    bool metrics_open, check_config;
    char *state_dir;
    int64_t metrics_tenants, expect_workers, expect_speculators;
    struct log_options log;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .placeholder = "DIR",
     .help = "directory of the main model (required); config.json and tokenizer.json are read, weights are not"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .placeholder = "FILE",
     .help = "for benchmarks: config.json to use instead of config.json of --model, the same as --shape of the nodes"},
    {.name = "grammar-library", .type = OPTION_STRING, .value = &o.grammar_library, .placeholder = "FILE",
     .help = GRAMMAR_LIBRARY_HELP},
    {.name = "close-schemas", .type = OPTION_BOOL, .value = &o.close_schemas, .default_text = "false",
     .help = "close objects in structured output and required tool calls: an object gets only the members that its "
             "JSON schema names, unless the schema has additionalProperties. Same effect as `strict`"},
    {.name = "chat-template", .type = OPTION_STRING, .value = &o.chat_template, .placeholder = "FILE",
     .help = "Jinja chat template to use instead of the model's chat_template.jinja or tokenizer_config.json"},
    IMAGE_TEXT_ROW(o.clients),
    {.name = "served-model-name", .type = OPTION_LIST, .value = &o.model_names, .placeholder = "NAME",
     .help = "model name that clients may ask for; give the option once for each name. Answers have the first name. "
             "Default: name of the --model directory"},
    LISTEN_OPTION_ROWS(o.listen),
    BATCH_OPTION_ROWS(o.listen.batch),
    {.name = "api-keys", .type = OPTION_STRING, .value = &o.api_keys, .placeholder = "FILE",
     .help = "file of API keys, made with forepack keys: clients must send one of them. Read again when it changes. "
             "Default: every client is allowed"},
    {.name = "state-dir", .type = OPTION_STRING, .value = &o.state_dir, .placeholder = "DIR",
     .help = "with --api-keys: folder that keeps the use of tokens_per_day over a restart; it is created if needed, and "
             "one router uses it. Default: a restart resets the use"},
    {.name = "metrics-open", .type = OPTION_BOOL, .value = &o.metrics_open, .default_text = "false",
     .help = "with --api-keys: serve GET /metrics without a key; otherwise it needs an operator's key"},
    {.name = "metrics-tenants", .type = OPTION_INT, .value = &o.metrics_tenants, .default_text = "64", .max = 1000,
     .unit = "tenants", .help = "with --api-keys: tenants that have their own series in the metrics of requests and tokens; "
                                "further tenants count as '(others)'. 0: these metrics have no label tenant"},
    {.name = "expect-workers", .type = OPTION_INT, .value = &o.expect_workers, .default_text = "0", .max = 100000,
     .live = true, .unit = "nodes",
     .help = "worker groups that should be attached, for the metric forepack:nodes_expected and its alert; 0: no number"},
    {.name = "expect-speculators", .type = OPTION_INT, .value = &o.expect_speculators, .default_text = "0",
     .max = 100000, .live = true, .unit = "nodes", .help = "speculators that should be attached, for the same metric"},
    {.name = "share-prefix-cache", .type = OPTION_BOOL, .value = &o.share_prefix_cache, .default_text = "false",
     .help = "let tenants reuse each other's cached prompts: saves prefill, but usage and TTFT then show a tenant that "
             "another tenant sent a prompt with the same start"},
    {.name = "-Tokenising"},
    {.name = "tokenise-threads", .type = OPTION_INT, .value = &o.tokenise_threads, .default_text = "0", .max = 1024,
     .unit = "threads", .help = "threads that tokenise prompts, one of them for short prompts only; 0: half of the cores, at "
                                "least 2"},
    {.name = "tokenise-queue-mb", .type = OPTION_INT, .value = &o.tokenise_queue_mb, .default_text = "256", .min = 1,
     .max = 1048576, .unit = "MiB", .help = "prompts that may wait to be tokenised; further prompts are refused with "
                                            "RESOURCE_EXHAUSTED"},
    {.name = "-Queue and packing"},
    {.name = "max-queue-requests", .type = OPTION_INT, .value = &o.max_queue_requests, .default_text = "10000",
     .min = 1, .max = 10000000, .unit = "requests",
     .live = true,
     .help = "requests that may wait; further requests are refused with RESOURCE_EXHAUSTED"},
    {.name = "max-queue-tokens", .type = OPTION_INT, .value = &o.max_queue_tokens, .default_text = "100000000",
     .min = 1, .max = 1e15, .unit = "tokens",
     .live = true,
     .help = "prompt tokens of all waiting requests, and a token for every 4 bytes of a grammar, stop strings or texts "
             "to compress; "
             "further requests are refused with RESOURCE_EXHAUSTED"},
    {.name = "queue-reserve", .type = OPTION_INT, .value = &o.queue_reserve, .default_text = "10", .max = 49,
     .live = true,
     .unit = "%", .help = "part of both limits that each priority class leaves to every higher class: with 10, normal "
                          "requests (priority 0) fill at most 90 % of the queue and low requests (below 0) 80 %"},
    {.name = "tenant-queue-share", .type = OPTION_INT, .value = &o.tenant_queue_share, .default_text = "80", .min = 1,
     .max = 100, .live = true,
     .unit = "%", .help = "part of these limits that the requests of one tenant may fill; each further tenant may fill "
                          "the same part of the rest; 100: no bound. With --tenant-weights, all tenants that it does "
                          "not name count as one"},
    {.name = "tenant-weights", .type = OPTION_STRING, .value = &o.tenant_weights, .placeholder = "NAME=W,...",
     .help = "shares of tenants; a tenant that is not named has weight 1: with a=4, tenant a gets four tokens "
             "for each token of an unnamed tenant (W 0.001..1000)"},
    {.name = "max-wait-ms", .type = OPTION_INT, .value = &o.max_wait_ms, .default_text = "500", .max = 3600000,
     .unit = "ms", .help = "waiting time after which a request is overdue; overdue requests, and requests near their "
                           "deadline, go into the next bin before all other requests"},
    {.name = "bins-ahead", .type = OPTION_INT, .value = &o.bins_ahead, .default_text = "2", .min = 1, .max = 64,
     .unit = "bins", .help = "most outstanding bins of a node; 2 gives a node its next bin while it computes the last"},
    {.name = "bin-policy", .type = OPTION_CHOICE, .value = &o.policy, .default_text = "dataset",
     .choices = "none|batch|dataset",
     .help = "requests that may share a bin: dataset: the whole queue; batch: one arrival batch; none: each request has "
             "its own bin (batch and none are for comparison)"},
    {.name = "batch-requests", .type = OPTION_INT, .value = &o.batch_requests, .default_text = "16", .min = 1,
     .max = 1000000, .unit = "requests", .help = "size of an arrival batch with --bin-policy batch"},
    {.name = "-Speculative prefill"},
    {.name = "prefill", .type = OPTION_CHOICE, .value = &o.prefill, .default_text = "off", .choices = PREFILL_MODES,
     .help = "default for requests that give neither a prefill mode, a quality nor a keep rate; auto and on prune prompts, which can "
             "change answers; required refuses prompts that no speculator scores"},
    {.name = "drafts", .type = OPTION_CHOICE, .value = &o.drafts, .default_text = "auto", .choices = DRAFT_MODES,
     .help = "for requests that do not set `drafts`; auto: answers use draft tokens (speculative decoding); off: they do "
             "not"},
    CLIENT_RULE_ROWS(o.clients),
    {.name = "quality", .type = OPTION_REAL, .value = &o.quality, .default_text = "0.99", .min = 1e-6, .max = 1,
     .help = "share of the answers that are right with the whole prompt and must stay right, for requests that give "
             "neither a quality nor a keep rate: the speculator chooses the keep rate by its calibration (forepack "
             "calibrate); without a calibration every token is kept"},
    {.name = "keep-rate", .type = OPTION_REAL, .value = &o.keep_rate, .min = 1e-6, .max = 1,
     .help = "fixed keep rate, used instead of --quality, for requests that give neither a quality nor a keep rate; a "
             "request that gives a quality or a keep rate, but no prefill mode, has the mode auto"},
    {.name = "speculate-min-tokens", .type = OPTION_INT, .value = &o.speculate_min_tokens, .default_text = "512",
     .max = 1e9, .unit = "tokens", .help = "shortest prompt that is speculated with --prefill auto; longer prompts are "
                                           "speculated if this is predicted to shorten TTFT"},
    {.name = "tail-tokens", .type = OPTION_INT, .value = &o.tail_tokens, .default_text = "128", .max = 1e9,
     .unit = "tokens", .help = "last tokens of a prompt that are always kept, at most a quarter of the prompt"},
    {.name = "pinned-turn-tokens", .type = OPTION_INT, .value = &o.pinned_turn_tokens, .default_text = "256",
     .max = 1e9, .unit = "tokens", .help = "tokens of a chat's last user turn that are always kept: the whole turn if it "
                                           "has no more, else half of them at its start and half at its end"},
    {.name = "selection-cache-mib", .type = OPTION_INT, .value = &o.selection_cache_mib, .default_text = "16",
     .max = 65536, .unit = "MiB", .help = "memory for the selections of scored prompts: a prompt that comes again with "
                                          "the same options is not scored again, and a chat keeps the rows of its earlier "
                                          "turns; 0: neither"},
    {.name = "score-timeout-ms", .type = OPTION_INT, .value = &o.score_timeout_ms, .default_text = "10000", .min = 1,
     .max = 3600000, .unit = "ms",
     .help = "longest wait of a prompt for a speculator; the score may then take this long plus four times its expected "
             "time; after either time, the prompt is prefilled whole"},
    SHADOW_OPTION_ROWS(o.shadow),
    {.name = "-Faults"},
    {.name = "heartbeat-ms", .type = OPTION_INT, .value = &o.heartbeat_ms, .default_text = "1000", .min = 10,
     .max = 60000, .unit = "ms", .help = "heartbeat interval of nodes; a node silent for three intervals is lost"},
    {.name = "stall-timeout-ms", .type = OPTION_INT, .value = &o.stall_timeout_ms, .default_text = "30000",
     .max = 3600000, .unit = "ms",
     .help = "a busy node without progress for this long, and for four times its longest pass, is treated as hung: "
             "a speculator is ejected, a worker group lost and its requests replayed; 0: progress is not watched"},
    {.name = "eject-ms", .type = OPTION_INT, .value = &o.eject_ms, .default_text = "10000", .max = 3600000, .unit = "ms",
     .help = "time without work for a node that hung or is ten times slower than its peers, doubled each further time; "
             "then it gets one request, two, four and so on; 0: no node is ejected"},
    {.name = "worker-grace-ms", .type = OPTION_INT, .value = &o.worker_grace_ms, .default_text = "30000",
     .max = 3600000, .unit = "ms",
     .help = "time that a request waits, after a worker group was lost, for a group that can hold it; then it ends with "
             "UNAVAILABLE"},
    {.name = "model-fingerprint", .type = OPTION_STRING, .value = &o.model_fingerprint, .placeholder = "HEX",
     .help = "accept only worker groups with the model of this fingerprint, 16 hexadecimal digits, which the event "
             "node_attached names; default: the model of the first worker group"},
    {.name = "speculator-fingerprint", .type = OPTION_STRING, .value = &o.speculator_fingerprint, .placeholder = "HEX",
     .help = "accept only speculators with the model of this fingerprint; default: any"},
    {.name = "mixed-numerics", .type = OPTION_BOOL, .value = &o.mixed_numerics, .default_text = "false",
     .help = "accept nodes of one role that differ in backend or types; a request that moves between them may change "
             "its tokens"},
    {.name = "shutdown-delay-ms", .type = OPTION_INT, .value = &o.shutdown_delay_ms, .default_text = "0", .max = 3600000,
     .live = true,
     .unit = "ms", .help = "time after SIGTERM in which /ready and the health service say not ready, but new requests "
                           "are still served, for load balancers to notice; then the router drains"},
    {.name = "drain-ms", .type = OPTION_INT, .value = &o.drain_ms, .default_text = "30000", .max = 3600000,
     .live = true,
     .unit = "ms", .help = "time for running requests to end after SIGTERM and --shutdown-delay-ms; a second signal ends them immediately"},
    TRACE_OPTION_ROWS(o.trace),
    CHECK_CONFIG_ROWS(o.check_config),
    {.name = "-Logging"},
    LOG_OPTION_ROWS(o.log),
    {0},
};
// clang-format on

static const char usage[] =
    "Usage: forepack-router --model DIR [options]\n"
    "The router of a Forepack cluster: clients and nodes connect to it. SIGTERM drains it.\n"
    "SIGHUP reads changed files: API keys, cluster token, certificates, and the log level, the\n"
    "bounds of the queue, shutdown-delay-ms and drain-ms in the --config file.";

// Returns the last component of a path. The caller frees it.
static char *path_base_name(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return mem_format("%.*s", (int)(length - start), path + start);
}

static enum bin_policy bin_policy_parse(const char *name)
{
    return strcmp(name, "none") == 0 ? BIN_NONE : strcmp(name, "batch") == 0 ? BIN_BATCH : BIN_DATASET;
}

// Parses NAME=W,NAME=W in place: the names in *weights_p point into `text`.
static enum status tenant_weights_parse(char *text, struct tenant_weight **weights_p, int *n_p)
{
    int n = 0, capacity = 0;
    struct tenant_weight *weights = NULL;
    for (char *rest = text, *part; (part = strsep(&rest, ","));) {
        char *equals = strrchr(part, '='), *end = "";
        double weight = equals ? strtod(equals + 1, &end) : 0;
        if (!equals || equals == part || *end || !(weight >= 0.001 && weight <= 1000)) {
            free(weights);
            return status_fail(STATUS_INVALID, "--tenant-weights '%s': must be NAME=W with W from 0.001 to 1000", part);
        }
        *equals = 0;
        MEM_GROW(weights, n, capacity);
        weights[n++] = (struct tenant_weight){part, weight};
    }
    *weights_p = weights;
    *n_p = n;
    return STATUS_OK;
}

// Opens the chat template. If the model has no usable template, the router serves text prompts only. A template file
// that the operator names must be usable.
static enum status chat_open(struct front *front)
{
    enum status status = chat_template_open(o.model, o.chat_template, &front->chat);
    if (status == STATUS_OK) {
        front->chat_syntax = chat_syntax_open(front->chat, front->tokenizer);
        front->system_turns = system_turns_rendered(front->chat, front->tokenizer);
        return STATUS_OK;
    }
    if (o.chat_template) return status_context(status, "--chat-template");
    front->chat_problem = mem_string(status_message());
    log_event(LOG_WARN, "chat_template_refused", LOG_FIELD("reason", front->chat_problem));
    return STATUS_OK;
}

static void model_names_set(struct front *front)
{
    int n = o.model_names.count;
    front->n_model_names = n ? n : 1;
    front->model_names = mem_alloc_array((size_t)front->n_model_names, sizeof *front->model_names);
    for (int i = 0; i < front->n_model_names; i++)
        front->model_names[i] = n ? mem_string(o.model_names.items[i]) : path_base_name(o.model);
}

static enum status quotas_open(struct front *front)
{
    if (!o.state_dir) return STATUS_OK;
    if (!o.api_keys) return status_fail(STATUS_INVALID, "--state-dir: keeps the use of API keys: give --api-keys too");
    enum status status = o.check_config ? quota_keeper_check(o.state_dir)
                                        : quota_keeper_open(o.state_dir, front->identity, &front->quotas);
    return status == STATUS_OK ? status : status_context(status, "--state-dir");
}

static void expected_nodes_set(struct front *front)
{
    atomic_store(&front->expected_nodes[NODE_WORKER], (int)o.expect_workers);
    atomic_store(&front->expected_nodes[NODE_SPECULATOR], (int)o.expect_speculators);
}

static enum status front_open(struct front *front)
{
    TRY(model_config_read(o.shape ? o.shape : o.model, &front->config));
    TRY(tokenizer_open(o.model, &front->tokenizer));
    if (tokenizer_vocab_size(front->tokenizer) > front->config.vocab_size) {
        return status_fail(STATUS_DATA, "%s: tokenizer.json has token ids up to %d, config.json a vocabulary of %d",
                           o.model, tokenizer_vocab_size(front->tokenizer) - 1, front->config.vocab_size);
    }
    TRY(chat_open(front));
    if (o.clients.image_text) TRY(intake_check_name("--image-text", o.clients.image_text));
    front->image_text = o.clients.image_text;
    front->tokenizer_info = tokenizer_info_read(o.model, o.chat_template, front->config.max_context);
    front->grammars = grammar_library_start(o.grammar_library, front->tokenizer, front->config.vocab_size,
                                            front->config.eos_id, front->config.n_eos);
    if (front->grammars) front->valid_grammars = grammar_cache_create();
    front->close_schemas = o.close_schemas;
    front->metrics_open = o.metrics_open;
    if (o.api_keys) TRY(identity_open(o.api_keys, &front->identity));
    TRY(quotas_open(front));
    front->share_prefix_cache = o.share_prefix_cache;
    model_names_set(front);
    front->heartbeat_ms = o.heartbeat_ms;
    front->instance = hash_key_random().k0 | 1;
    front->tail_tokens = (int)o.tail_tokens;
    front->pinned_turn_tokens = (int)o.pinned_turn_tokens;
    prefill_defaults(&front->prefill);
    prefill_mode_parse(o.prefill, &front->prefill.mode);
    bool fixed = options_given(options, "keep-rate");
    front->prefill.keep_rate = fixed ? o.keep_rate : 1; // every token is kept if there is no calibration
    front->prefill.quality = fixed ? 0 : o.quality;
    draft_mode_parse(o.drafts, &front->prefill.drafts);
    TRY(prune_rule_parse("--prune-rule", o.clients.prune_rule, &front->rules.prune));
    TRY(draft_rule_parse("--drafts-rule", o.clients.drafts_rule, &front->rules.drafts));
    TRY(shadow_options_read(&o.shadow, front->prefill.quality, &o.shadow_options));
    atomic_init(&front->max_queue_requests, (int)o.max_queue_requests);
    expected_nodes_set(front);
    front->started_us = clock_now_us();
    return STATUS_OK;
}

static void front_close(struct front *front)
{
    chat_template_free(front->chat);
    grammar_cache_free(front->valid_grammars);
    grammar_library_free(front->grammars);
    free(front->chat_problem);
    free(front->tokenizer_info);
    tokenizer_free(front->tokenizer);
    for (int i = 0; i < front->n_model_names; i++)
        free(front->model_names[i]);
    free(front->model_names);
    free(front->settings);
    quota_keeper_close(front->quotas);
    identity_close(front->identity);
    cluster_token_free(front->cluster_token);
}

// Returns 0 for no bound.
static int tenant_queue_percent(void)
{
    return o.tenant_queue_share < 100 ? (int)o.tenant_queue_share : 0;
}

// Parses a fingerprint. NULL gives 0, which accepts any model.
static enum status fingerprint_parse(const char *option, const char *text, uint64_t *fingerprint_p)
{
    char *end = "";
    *fingerprint_p = text ? strtoull(text, &end, 16) : 0;
    if (!text || (strlen(text) == 16 && strspn(text, "0123456789abcdefABCDEF") == 16 && *fingerprint_p))
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "--%s '%s': must be 16 hexadecimal digits", option, text);
}

static enum status fingerprints_parse(void)
{
    TRY(fingerprint_parse("model-fingerprint", o.model_fingerprint, &o.fingerprints[NODE_WORKER]));
    return fingerprint_parse("speculator-fingerprint", o.speculator_fingerprint, &o.fingerprints[NODE_SPECULATOR]);
}

static void queue_bounds_fill(struct core_options *bounds)
{
    bounds->max_queue_requests = (int)o.max_queue_requests;
    bounds->max_queue_tokens = o.max_queue_tokens;
    bounds->queue_reserve_percent = (int)o.queue_reserve;
    bounds->tenant_queue_percent = tenant_queue_percent();
}

static struct core *router_core_create(struct front *front, const struct tenant_weight *weights, int n_weights)
{
    struct core_ops ops;
    front_core_ops_init(front, &ops);
    struct core_options core_options = {
        .tenant_weights = weights,
        .n_tenant_weights = n_weights,
        .tenant_series = o.api_keys ? (int)o.metrics_tenants : 0, // without keys a client may name any tenant
        .max_wait_us = o.max_wait_ms * 1000,
        .score_timeout_us = o.score_timeout_ms * 1000,
        .stall_us = o.stall_timeout_ms * 1000,
        .eject_us = o.eject_ms * 1000,
        .worker_grace_us = o.worker_grace_ms * 1000,
        .heartbeat_us = o.heartbeat_ms * 1000,
        .min_tokens = (int)o.speculate_min_tokens,
        .tail_tokens = (int)o.tail_tokens,
        .selection_bytes = o.selection_cache_mib << 20,
        .bins_ahead = (int)o.bins_ahead,
        .mixed_numerics = o.mixed_numerics,
        .policy = bin_policy_parse(o.policy),
        .batch_requests = (int)o.batch_requests,
        .tokenizer_fingerprint = tokenizer_fingerprint(front->tokenizer),
        .vocab_size = front->config.vocab_size,
        .shadow = o.shadow_options,
        .clock_us = clock_now_us,
    };
    queue_bounds_fill(&core_options);
    memcpy(core_options.model_fingerprints, o.fingerprints, sizeof o.fingerprints);
    return core_create(&core_options, &ops);
}

// --- files that have changed

static void event_set_queue_bounds(struct core *c, void *arg, int64_t now_us)
{
    core_set_queue_bounds(c, arg);
    free(arg);
}

struct settings_change {
    struct front *front;
    char *text; // owned
};

static void event_set_settings(struct core *c, void *arg, int64_t now_us)
{
    struct settings_change *change = arg;
    free(change->front->settings);
    change->front->settings = change->text;
    free(change);
}

// Gives the core's thread the values of all options, for GetDiagnostics.
static void settings_publish(struct front *front)
{
    struct settings_change *change = mem_alloc(sizeof *change);
    *change = (struct settings_change){front, options_format(options)};
    loop_post(front->loop, event_set_settings, change);
}

static void live_options_apply(struct front *front)
{
    settings_publish(front);
    expected_nodes_set(front);
    struct core_options *bounds = mem_alloc(sizeof *bounds);
    log_options_apply_level(&o.log); // the times of the shutdown are read when it begins
    queue_bounds_fill(bounds);
    atomic_store(&front->max_queue_requests, bounds->max_queue_requests);
    intake_pool_set_bounds(front->pool, bounds->max_queue_requests, bounds->tenant_queue_percent);
    loop_post(front->loop, event_set_queue_bounds, bounds);
}

// Reads changed files again. Each reader logs what changed. If a file has an error, its reader logs the error and keeps
// the last contents. The --config file is read again only here. The other files are also read when they are used.
static void router_reload(struct front *front, const struct listeners *listeners, struct service_state *state)
{
    log_event(LOG_INFO, "reload_started", LOG_FIELD("signal", "SIGHUP"));
    service_manager_reloading();
    enum status status = options_reload(options);
    if (status != STATUS_OK)
        log_event(LOG_ERROR, "config_refused", LOG_REASON, LOG_FIELD("effect", "all options stay as they are"));
    live_options_apply(front);
    status = status_either(status, identity_reload(front->identity));
    status = status_either(status, listeners_reload(listeners, front));
    service_state_set_refused(state, status == STATUS_OK ? NULL : status_message());
    service_manager_ready();
    log_event(LOG_INFO, "reload_done", LOG_FIELD("signal", "SIGHUP"));
}

// Waits until a signal ends the router.
static void signals_await(struct front *front, const struct listeners *listeners, const sigset_t *signals,
                          struct service_state *state)
{
    while (service_state_wait(state, signals, -1) == SIGHUP)
        router_reload(front, listeners, state);
}

// --- serving

static struct intake_pool *router_open_pool(void)
{
    int64_t threads = o.tokenise_threads ? o.tokenise_threads : cpu_limits_threads(1, 1) / 2;
    const struct intake_pool_options pool_options = {
        .threads = threads > 1 || o.tokenise_threads ? (int)threads : 2,
        .max_bytes = (size_t)o.tokenise_queue_mb << 20,
        .max_jobs = (int)o.max_queue_requests,
        .tenant_share_percent = tenant_queue_percent(),
    };
    return intake_pool_open(&pool_options);
}

enum { METHODS_MAX = 32 };

// Lists the methods that clients may call. The methods of a service are next to each other.
static void methods_fill(const struct front *front, struct rpc_method methods[METHODS_MAX + 1])
{
    enum { WITH_PROMPT = 4 };
    const struct rpc_method of_inference[] = {
        front_generate,   front_generate_many, front_score,        front_compress,   front_abort,      front_tokenize,
        front_detokenize, front_model_info,    front_cluster_info, front_drain_node, front_diagnostics};
    const struct rpc_method of_kserve[] = {front_model_infer, front_model_stream_infer};
    const size_t n_inference = sizeof of_inference / sizeof *of_inference;
    size_t n = n_inference, limit = intake_message_limit(front, front->config.max_context);
    memcpy(methods, of_inference, sizeof of_inference);
    memcpy(methods + n, of_kserve, sizeof of_kserve);
    n += sizeof of_kserve / sizeof *of_kserve;
    for (size_t i = 0; i < n; i++)
        if (i < WITH_PROMPT || i >= n_inference) methods[i].max_message_bytes = limit;
    for (const struct rpc_method *info = front_kserve_info; info->path && n < METHODS_MAX; info++)
        methods[n++] = *info;
    methods[n] = (struct rpc_method){0};
}

static void event_publish_ready(struct core *c, void *arg, int64_t now_us)
{
    front_publish_ready(arg);
}

// Serves until a signal has come and the core is drained.
static enum status router_serve(struct front *front, struct listeners *listeners, struct service_state *state,
                                sigset_t *signals)
{
    struct rpc_method methods[METHODS_MAX + 1];
    methods_fill(front, methods);
    TRY(listeners_open(&o.listen, front, methods, listeners));
    __atomic_store_n(&front->server, listeners->clients, __ATOMIC_RELEASE);
    __atomic_store_n(&front->http, listeners->http, __ATOMIC_RELEASE);
    settings_publish(front);
    loop_post(front->loop, event_publish_ready, front);
    log_event(LOG_INFO, "router_listening", LOG_FIELD("host", o.listen.host),
              LOG_FIELD("port", rpc_server_port(listeners->clients)),
              LOG_FIELD("http_port", http_service_port(listeners->http)),
              LOG_FIELD("node_port", rpc_server_port(listeners->nodes)), LOG_FIELD("model", front->model_names[0]),
              LOG_FIELD("context_tokens", front->config.max_context), LOG_FIELD("vocab_size", front->config.vocab_size),
              LOG_FIELD("chat_template", front->chat ? chat_template_name(front->chat) : "none"));
    service_manager_ready();
    signals_await(front, listeners, signals, state);
    const struct shutdown shutdown = {.front = front,
                                      .http = listeners->http,
                                      .state = state,
                                      .signals = signals,
                                      .delay_ms = o.shutdown_delay_ms,
                                      .drain_ms = o.drain_ms};
    router_shut_down(&shutdown);
    listeners_close(listeners, 1000);
    return STATUS_OK;
}

enum { TRACE_FLUSH_MS = 3000 }; // time to send the last spans when the router ends

// Starts the core's thread, serves, and stops everything in reverse order.
static enum status router_run(struct front *front, const struct tenant_weight *weights, int n_weights,
                              sigset_t *signals)
{
    struct core *core = router_core_create(front, weights, n_weights);
    front->loop = loop_start(core);
    front->pool = router_open_pool();
    front->parsed_messages = parsed_message_table_create();
    rpc_init();
    struct listeners listeners = {0};
    struct service_state *state = service_state_open(front);
    enum status status = trace_open(&o.trace, o.listen.host, &front->tracer);
    if (status == STATUS_OK) status = router_serve(front, &listeners, state, signals);
    intake_pool_close(front->pool);
    loop_stop(front->loop);
    service_state_close(state);
    http_service_free(listeners.http);
    core_free(core);
    tracer_close(front->tracer, TRACE_FLUSH_MS);
    rpc_shutdown();
    intake_pool_free(front->pool);
    parsed_message_table_free(front->parsed_messages);
    return status;
}

// Keeps freed memory for the next large messages. A large gRPC message arrives in many blocks, on several threads of
// the gRPC library. If malloc returned each message's memory to the kernel, the page faults of the next message would
// take more time than copying it. So every arena of malloc keeps enough for one message of the largest size. There are
// few arenas, so the router keeps at most 512 MiB. With a memory limit below 4 GiB, there are even fewer arenas, and
// nothing is kept.
static void memory_keep_freed(void)
{
    enum { MAPPED_BYTES = 4 << 20, KEPT_BYTES = 64 << 20, ARENAS = 8 };
    const size_t limit = memory_limit_bytes();
    const bool small = limit && limit >> 30 < 4;
    mallopt(M_ARENA_MAX, small ? 2 : ARENAS);
    if (small) return;
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
}

// Blocks the signals for all threads, because the main thread alone waits for them. Call it before other threads start:
// they inherit the mask.
static void signals_block(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

// Fits the budgets into the memory limit of the cgroup, if there is one. The largest message decides what connections
// and bodies may hold.
static enum status budgets_fit(void)
{
    enum { GROWTH_MIB = 48, MESSAGES = 16, BODIES = 4, MESSAGE_MIB_MIN = 4 };
    const int64_t limit_mib = (int64_t)(memory_limit_bytes() >> 20);
    struct listen_options *l = &o.listen;
    if (!limit_mib) return STATUS_OK;
    const int64_t message_mib = limit_mib / MESSAGES > MESSAGE_MIB_MIN ? limit_mib / MESSAGES : MESSAGE_MIB_MIN;
    if (!options_given(options, "max-message-mb") && l->max_message_mb > message_mib) l->max_message_mb = message_mib;
    if (!l->max_peers_mb) l->max_peers_mb = LISTEN_PEERS_MESSAGES * l->max_message_mb;
    l->max_bodies_mb = BODIES * l->max_message_mb;
    const struct memory_budget budgets[] = {
        {"max-peers-mb", &l->max_peers_mb, 2 * l->max_message_mb, options_given(options, "max-peers-mb")},
        {"max-answers-mb", &l->max_answers_mb, 16, options_given(options, "max-answers-mb")},
        {"max-keyless-mb", &l->max_keyless_mb, 8, options_given(options, "max-keyless-mb")},
        {"tokenise-queue-mb", &o.tokenise_queue_mb, 16, options_given(options, "tokenise-queue-mb")},
        {"selection-cache-mib", &o.selection_cache_mib, 0, options_given(options, "selection-cache-mib")}};
    return memory_budgets_fit(limit_mib, (int64_t)(memory_used_bytes() >> 20) + GROWTH_MIB + l->max_bodies_mb, budgets,
                              sizeof budgets / sizeof *budgets);
}

// Checks the options and opens the files that they name. The caller frees the weights and closes the front, even on
// failure.
static enum status configuration_open(struct front *front, char *weights_text, struct tenant_weight **weights_p,
                                      int *n_weights_p)
{
    if (!o.model) return status_fail(STATUS_INVALID, "--model: the directory of the main model is required");
    TRY(tenant_weights_parse(weights_text, weights_p, n_weights_p));
    TRY(fingerprints_parse());
    TRY(listen_check(&o.listen));
    TRY(trace_check(&o.trace, o.listen.insecure));
    if (!o.check_config) options_log(options); // a wrong option is one line, without the settings
    TRY(front_open(front));
    return budgets_fit(); // the tokenizer is in memory
}

// Opens the tracer, which reads its files, and closes it before it connects.
static enum status trace_check_files(void)
{
    struct tracer *tracer = NULL;
    rpc_init();
    enum status status = trace_open(&o.trace, o.listen.host, &tracer);
    tracer_close(tracer, 0);
    rpc_shutdown();
    return status;
}

// Checks the files of the ports and of the tracer after the rest of the configuration. Returns the exit code.
static int configuration_report(enum status status)
{
    if (status == STATUS_OK) status = listen_check_files(&o.listen);
    if (status == STATUS_OK) status = trace_check_files();
    return options_check_report("forepack-router", status);
}

// Logs why the router ends, and returns the exit code.
static int end_report(enum status status, const struct front *front)
{
    if (status == STATUS_OK) {
        log_event(LOG_INFO, "router_stopped", LOG_FIELD("uptime_s", (clock_now_us() - front->started_us) / 1000000));
    } else {
        log_event(LOG_ERROR, "start_failed", LOG_REASON);
        service_manager_set_status("The start failed: %s", status_message());
    }
    return status_exit_code(status);
}

int main(int argc, char **argv)
{
    options_use_environment();
    options_main(options, usage, argc, argv, NULL);
    service_manager_open();
    memory_keep_freed();
    log_options_apply(&o.log, "router");
    log_writer_start(log_tell_dropped);
    sigset_t signals;
    signals_block(&signals);
    descriptors_raise();

    struct refusals refusals = {0};
    struct compressed compressed = {0};
    struct front front = {.refusals = &refusals, .compressed = &compressed};
    char *weights_text = o.tenant_weights ? mem_string(o.tenant_weights) : NULL;
    struct tenant_weight *weights = NULL;
    int n_weights = 0;
    enum status status = configuration_open(&front, weights_text, &weights, &n_weights);
    if (status == STATUS_OK && !o.check_config) status = router_run(&front, weights, n_weights, &signals);
    const int code = o.check_config ? configuration_report(status) : end_report(status, &front);
    front_close(&front);
    free(weights);
    free(weights_text);
    options_free(options);
    return code;
}
