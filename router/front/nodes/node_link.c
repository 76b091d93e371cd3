// SPDX-License-Identifier: Apache-2.0
// Converts messages of a node to events of the core. See node_link.h.
#include "router/front/nodes/node_link.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/base/version.h"
#include "router/front/request/intake.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

// A text of a node as logs and clients may see it.
struct node_text {
    char text[1024];
};

static struct node_text node_text(const char *from)
{
    struct node_text clean;
    utf8_format(clean.text, sizeof clean.text, "%s", from);
    utf8_clean(clean.text);
    return clean;
}

// --- Hello

static const char *message_role_name(Forepack__Cluster__V1__Role role)
{
    switch (role) {
    case FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER: return "worker";
    case FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR: return "speculator";
    default: return "unknown";
    }
}

static void refuse_send(struct node_link *link, Forepack__Cluster__V1__Refused *refused)
{
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED;
    message.refused = refused;
    link->ops->send(link, &message);
    link->ended = true;
    link->ops->finish(link, STATUS_OK, "");
}

// Refuses the node with the error message of status_message(). The node logs the message and tries again later.
static void node_refuse(struct node_link *link, const char *node_id, Forepack__Cluster__V1__Role role,
                        enum status status)
{
    const struct node_text node = node_text(node_id);
    log_event_limited(LOG_WARN, "node_refused", LOG_FIELD("node", node.text),
                      LOG_FIELD("role", message_role_name(role)), LOG_FIELD("peer", link->ops->peer(link)), LOG_REASON);
    Forepack__Cluster__V1__Refused refused = FOREPACK__CLUSTER__V1__REFUSED__INIT;
    refused.reason = (char *)status_message();
    refused.retry = status == STATUS_EXISTS || status == STATUS_EXHAUSTED;
    refuse_send(link, &refused);
}

// Copies a name. Returns false if the name does not fit, is not UTF-8, or has a control character, which could change a
// reader's terminal.
static bool name_copy(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);
    if (n >= size || !utf8_valid(from, n, NULL) || utf8_has_control(from, n)) return false;
    snprintf(to, size, "%s", from);
    return true;
}

static enum status hello_read_counts(const Forepack__Cluster__V1__Hello *m, struct node_hello *h)
{
    const struct {
        const char *name;
        uint32_t from;
        int *to;
    } counts[] = {
        {"ranks", m->ranks, &h->ranks},
        {"vocab_size", m->vocab_size, &h->vocab_size},
        {"context_tokens", m->context_tokens, &h->context_tokens},
        {"token_budget", m->token_budget, &h->token_budget},
        {"block_tokens", m->block_tokens, &h->block_tokens},
        {"kv_blocks", m->kv_blocks, &h->kv_blocks},
        {"max_seqs", m->max_seqs, &h->max_seqs},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].from < 1 || counts[i].from > INT_MAX / 2) {
            return status_fail(STATUS_INVALID, "%s %u: must be from 1 to %d", counts[i].name, counts[i].from,
                               INT_MAX / 2);
        }
        *counts[i].to = (int)counts[i].from;
    }
    return STATUS_OK;
}

static enum status process_check(const char *version, uint32_t protocol, uint64_t instance)
{
    if (protocol < CLUSTER_PROTOCOL_OLDEST || protocol > CLUSTER_PROTOCOL_VERSION) {
        const char *remedy = protocol > CLUSTER_PROTOCOL_VERSION ? "upgrade the router first" : "upgrade the node";
        return status_fail(STATUS_INVALID,
                           "the node (version %s) speaks version %u of the cluster protocol, the router (version "
                           "%s) versions %d to %d: %s",
                           node_text(version).text, protocol, FOREPACK_VERSION, CLUSTER_PROTOCOL_OLDEST,
                           CLUSTER_PROTOCOL_VERSION, remedy);
    }
    if (!instance) return status_fail(STATUS_INVALID, "instance 0: must be a random number other than 0");
    return STATUS_OK;
}

static void hello_read_calibration(const Forepack__Cluster__V1__Calibration *m, struct node_calibration *calibration)
{
    if (!m) return;
    *calibration = (struct node_calibration){
        .fingerprint = m->fingerprint,
        .main_fingerprint = m->main_fingerprint,
        .look_ahead = intake_int(m->look_ahead),
        .chunk_tokens = m->chunk_tokens,
        .pool_window = intake_int(m->pool_window),
        .tail_tokens = intake_int(m->tail_tokens),
    };
}

static struct pass_cost pass_read(uint32_t rows, uint64_t pairs, uint32_t us, bool has_prompts)
{
    return (struct pass_cost){
        .rows = rows, .pairs = pairs < INT64_MAX ? (int64_t)pairs : INT64_MAX, .us = us, .has_prompts = has_prompts};
}

static void hello_read_measured(const Forepack__Cluster__V1__Hello *m, struct node_hello *h)
{
    for (size_t i = 0; i < m->n_measured && i < NODE_MEASURED_MAX; i++) {
        const Forepack__Cluster__V1__MeasuredPass *pass = m->measured[i];
        h->measured[h->n_measured++] = pass_read(pass->rows, pass->pairs, pass->us, false);
        if (!pass->us || pass->latency_us < pass->us) continue;
        h->stage_us += pass->us;
        h->latency_us += pass->latency_us;
    }
}

static enum status role_read(Forepack__Cluster__V1__Role role, enum node_role *role_p)
{
    if (role != FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER && role != FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR)
        return status_fail(STATUS_INVALID, "role %d: must be speculator or worker", (int)role);
    *role_p = role == FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER ? NODE_WORKER : NODE_SPECULATOR;
    return STATUS_OK;
}

static enum status hello_read(const Forepack__Cluster__V1__Hello *m, struct node_hello *h)
{
    *h = (struct node_hello){
        .model_fingerprint = m->model_fingerprint,
        .tokenizer_fingerprint = m->tokenizer_fingerprint,
        .prefix_cache = m->prefix_cache,
        .instance = m->instance,
        .stages = m->stages ? intake_int(m->stages) : 1,
    };
    TRY(role_read(m->role, &h->role));
    if (!name_copy(h->node_id, sizeof h->node_id, m->node_id) || !h->node_id[0] ||
        !name_copy(h->host, sizeof h->host, m->host) || !name_copy(h->version, sizeof h->version, m->version) ||
        !name_copy(h->backend, sizeof h->backend, m->backend) || !name_copy(h->dtype, sizeof h->dtype, m->dtype) ||
        !name_copy(h->kv_dtype, sizeof h->kv_dtype, m->kv_dtype) || !name_copy(h->cores, sizeof h->cores, m->cores) ||
        !name_copy(h->cores_decided_by, sizeof h->cores_decided_by, m->cores_decided_by)) {
        return status_fail(STATUS_INVALID, "node_id, host, version, backend, dtype, kv_dtype and cores must be short "
                                           "UTF-8 without control characters, node_id not empty");
    }
    TRY(process_check(m->version, m->protocol, m->instance));
    hello_read_calibration(m->calibration, &h->calibration);
    hello_read_measured(m, h);
    return hello_read_counts(m, h);
}

static void send_welcome(struct node_link *link)
{
    Forepack__Cluster__V1__Welcome welcome = FOREPACK__CLUSTER__V1__WELCOME__INIT;
    welcome.heartbeat_ms = (uint32_t)link->heartbeat_ms;
    welcome.instance = link->instance;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME;
    message.welcome = &welcome;
    link->ops->send(link, &message);
}

// Refuses a second stream of a node that is attached through another address of this router. The node logs it once.
static bool duplicate_refuse(struct node_link *link, const Forepack__Cluster__V1__Hello *m)
{
    for (size_t i = 0; i < m->n_attached; i++) {
        if (!link->instance || m->attached[i] != link->instance) continue;
        Forepack__Cluster__V1__Refused refused = FOREPACK__CLUSTER__V1__REFUSED__INIT;
        refused.reason = "the node is attached to this router through another address";
        refused.retry = refused.duplicate = true;
        refuse_send(link, &refused);
        return true;
    }
    return false;
}

static void handle_hello(struct core *c, struct node_link *link, const Forepack__Cluster__V1__Hello *m, int64_t now_us)
{
    struct node_hello hello;
    if (duplicate_refuse(link, m)) return;
    enum status status =
        link->greeted ? status_fail(STATUS_INVALID, "a second Hello on one stream") : hello_read(m, &hello);
    if (status == STATUS_OK) status = core_attach(c, &hello, link, now_us, &link->node);
    if (status != STATUS_OK) {
        node_refuse(link, m->node_id, m->role, status);
        return;
    }
    link->greeted = true;
    link->loading = NULL;
    send_welcome(link);
}

// --- Loading

static enum status loading_read(const Forepack__Cluster__V1__Loading *m, struct node_loading *l)
{
    *l = (struct node_loading){
        .instance = m->instance, .ranks = intake_int(m->ranks), .percent = intake_int(m->percent)};
    TRY(role_read(m->role, &l->role));
    if (!name_copy(l->node_id, sizeof l->node_id, m->node_id) || !name_copy(l->host, sizeof l->host, m->host) ||
        !name_copy(l->version, sizeof l->version, m->version))
        return status_fail(STATUS_INVALID, "node_id, host and version must be short UTF-8 without control characters");
    return process_check(m->version, m->protocol, m->instance);
}

static void handle_loading(struct core *c, struct node_link *link, const Forepack__Cluster__V1__Loading *m,
                           int64_t now_us)
{
    struct node_loading report;
    const bool first = !link->loading;
    enum status status = link->greeted ? status_fail(STATUS_INVALID, "Loading after Hello") : loading_read(m, &report);
    if (status == STATUS_OK) status = core_loading(c, &report, link, now_us, &link->loading);
    if (status != STATUS_OK)
        node_refuse(link, m->node_id, m->role, status);
    else if (first)
        send_welcome(link);
}

// --- results

static void gpu_read(const Forepack__Cluster__V1__Gpu *m, struct node_gpu *gpu)
{
    *gpu = (struct node_gpu){
        .rank = intake_int(m->rank),
        .known = m->known,
        .healthy = m->healthy,
        .has_temperature =
            m->temperature_given_case == FOREPACK__CLUSTER__V1__GPU__TEMPERATURE_GIVEN_TEMPERATURE_CELSIUS,
        .memory_used_bytes = m->memory_used_bytes,
        .memory_total_bytes = m->memory_total_bytes,
        .has_ecc = m->ecc_given_case == FOREPACK__CLUSTER__V1__GPU__ECC_GIVEN_ECC_CORRECTED,
        .ecc_uncorrected = m->ecc_uncorrected,
        .has_throttle = m->n_throttled_us > 0,
        .xid_errors = m->xid_errors,
        .last_xid = m->last_xid,
    };
    if (gpu->has_temperature) gpu->temperature_celsius = intake_int(m->temperature_celsius);
    if (gpu->has_ecc) gpu->ecc_corrected = m->ecc_corrected;
    for (size_t i = 0; i < m->n_throttled_us && i < GPU_THROTTLES; i++)
        gpu->throttled_us[i] = m->throttled_us[i];
}

// Reads the GPUs of a node and returns their number.
static int gpus_read(const Forepack__Cluster__V1__Heartbeat *m, struct node_gpu *gpus)
{
    int n = 0;
    while (n < NODE_GPUS_MAX && (size_t)n < m->n_gpus) {
        gpu_read(m->gpus[n], &gpus[n]);
        n++;
    }
    return n;
}

static void handle_heartbeat(struct core *c, struct node_link *link, const Forepack__Cluster__V1__Heartbeat *m,
                             int64_t now_us)
{
    struct node_gpu gpus[NODE_GPUS_MAX];
    struct node_heartbeat heartbeat = {.kv_blocks_free = intake_int(m->kv_blocks_free),
                                       .preemptions = m->preemptions,
                                       .progress = m->progress,
                                       .last_bin = m->last_bin,
                                       .requests = (int64_t)m->running + m->waiting,
                                       .held_prompts = intake_int(m->held_prompts),
                                       .held_kv_blocks = intake_int(m->held_kv_blocks),
                                       .gpus = gpus,
                                       .n_gpus = gpus_read(m, gpus)};
    core_heartbeat(c, link->node, &heartbeat, now_us);
}

static void handle_pass(struct core *c, struct node_link *link, const struct pass_cost *pass, int64_t now_us)
{
    if (pass->us) core_passed(c, link->node, pass, now_us);
}

static enum rate_reason rate_reason_read(Forepack__Cluster__V1__RateReason reason)
{
    switch (reason) {
    case FOREPACK__CLUSTER__V1__RATE_REASON__RATE_QUALITY: return RATE_QUALITY;
    case FOREPACK__CLUSTER__V1__RATE_REASON__RATE_UNSURE: return RATE_UNSURE;
    case FOREPACK__CLUSTER__V1__RATE_REASON__RATE_UNCALIBRATED: return RATE_UNCALIBRATED;
    default: return RATE_FIXED;
    }
}

static void handle_scores(struct core *c, struct node_link *link, const Forepack__Cluster__V1__ScoreResults *m,
                          int64_t now_us)
{
    for (size_t i = 0; i < m->n_results; i++) {
        const Forepack__Cluster__V1__ScoreResult *from = m->results[i];
        const struct node_text error = node_text(from->error);
        struct token_range *kept = mem_alloc_array(from->n_kept, sizeof *kept);
        for (size_t k = 0; k < from->n_kept; k++)
            kept[k] = (struct token_range){intake_int(from->kept[k]->first), intake_int(from->kept[k]->last)};
        struct score_result result = {
            .request = from->request,
            .kept = kept,
            .n_kept = intake_int((uint32_t)from->n_kept),
            .importance = from->n_importance ? from->importance : NULL,
            .n_importance = intake_int((uint32_t)from->n_importance),
            .error = *error.text ? error.text : NULL,
            .cached_tokens = intake_int(from->cached_tokens),
            .keep_rate = from->keep_rate,
            .reason = rate_reason_read(from->rate_reason),
            .draft =
                (const int32_t *)from->draft_ids, // a number over INT_MAX becomes negative, and the core refuses it
            .n_draft = intake_int((uint32_t)from->n_draft_ids),
        };
        core_scored(c, link->node, &result, now_us);
        free(kept);
    }
    const struct pass_cost pass = pass_read(m->rows, m->pairs, m->pass_us, false);
    handle_pass(c, link, &pass, now_us);
}

static void logprob_read(const Forepack__Cluster__V1__TokenLogprob *from, struct token_logprob *to)
{
    to->token = intake_int(from->token_id);
    to->logprob = from->logprob;
    to->rank = intake_int(from->rank);
    size_t n = from->n_top_ids < from->n_top_logprobs ? from->n_top_ids : from->n_top_logprobs;
    to->n_top = n > LOGPROBS_MAX ? LOGPROBS_MAX : (int)n;
    for (int i = 0; i < to->n_top; i++) {
        to->top_token[i] = intake_int(from->top_ids[i]);
        to->top_logprob[i] = from->top_logprobs[i];
    }
}

static const struct token_logprob *logprobs_read(Forepack__Cluster__V1__TokenLogprob *const *from, size_t n,
                                                 struct token_logprob *to)
{
    for (size_t i = 0; i < n; i++)
        logprob_read(from[i], &to[i]);
    return to;
}

// Reads a result. `logprobs` has room for the log-probabilities of the tokens and of the prompt. The caller frees the
// error.
static void sequence_result_read(const Forepack__Cluster__V1__SequenceResult *from, struct token_logprob *logprobs,
                                 struct sequence_result *to)
{
    *to = (struct sequence_result){
        .request = from->request,
        .bin = from->bin_id,
        .tokens = (const int32_t *)from->token_ids, // a number over INT_MAX becomes negative, and the core refuses it
        .n_tokens = intake_int((uint32_t)from->n_token_ids),
        .finished = from->finish != FOREPACK__CLUSTER__V1__FINISH__FINISH_NONE,
        .reason = from->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_STOP     ? FINISH_REASON_STOP
                  : from->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH ? FINISH_REASON_LENGTH
                                                                                 : FINISH_REASON_ERROR,
        .grammar_failed = from->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_GRAMMAR,
        .error = *from->error ? mem_string(node_text(from->error).text) : NULL,
        .cached_tokens = intake_int(from->cached_tokens),
        .draft_tokens = intake_int(from->draft_tokens),
        .draft_accepted_tokens = intake_int(from->draft_accepted_tokens),
        .prompt_logprobs = logprobs_read(from->prompt_logprobs, from->n_prompt_logprobs, logprobs + from->n_logprobs),
        .n_prompt_logprobs = intake_int((uint32_t)from->n_prompt_logprobs),
        .prompt_logprobs_from = intake_int(from->prompt_logprobs_from),
    };
    if (from->n_logprobs && from->n_logprobs == from->n_token_ids)
        to->logprobs = logprobs_read(from->logprobs, from->n_logprobs, logprobs);
}

// Returns true if the step had prompt rows: more rows than results (one decode row each) and draft rows together,
// those of other routers included.
static bool has_prompt_rows(const Forepack__Cluster__V1__StepResults *m)
{
    uint64_t rows = (uint64_t)m->n_results + m->other_rows;
    for (size_t i = 0; i < m->n_results; i++)
        rows += m->results[i]->draft_tokens;
    return m->rows > rows;
}

static void handle_step(struct core *c, struct node_link *link, const Forepack__Cluster__V1__StepResults *m,
                        int64_t now_us)
{
    size_t n_logprobs = 0;
    for (size_t i = 0; i < m->n_results; i++)
        n_logprobs += m->results[i]->n_logprobs + m->results[i]->n_prompt_logprobs;
    struct sequence_result *results = mem_alloc_array(m->n_results, sizeof *results);
    struct token_logprob *logprobs = mem_alloc_array(n_logprobs, sizeof *logprobs);
    size_t used = 0;
    for (size_t i = 0; i < m->n_results; i++) {
        sequence_result_read(m->results[i], logprobs + used, &results[i]);
        used += m->results[i]->n_logprobs + m->results[i]->n_prompt_logprobs;
    }
    core_draft_length(link->node, intake_int(m->draft_length));
    core_step(c, link->node, results, (int)m->n_results, now_us);
    core_other_rows(link->node, intake_int(m->other_rows));
    const struct pass_cost pass = pass_read(m->rows, m->pairs, m->step_us, has_prompt_rows(m));
    handle_pass(c, link, &pass, now_us);
    if (m->step_us) core_pass_latency(link->node, m->latency_us > m->step_us ? m->latency_us : m->step_us);
    for (size_t i = 0; i < m->n_results; i++)
        free((char *)results[i].error);
    free(logprobs);
    free(results);
}

static void handle_drafts(struct core *c, struct node_link *link, const Forepack__Cluster__V1__Drafts *m,
                          int64_t now_us)
{
    struct node_draft *drafts = mem_alloc_array(m->n_drafts, sizeof *drafts);
    for (size_t i = 0; i < m->n_drafts; i++) {
        const Forepack__Cluster__V1__Draft *from = m->drafts[i];
        drafts[i] = (struct node_draft){
            .request = from->request,
            .from = intake_int(from->from),
            .tokens =
                (const int32_t *)from->token_ids, // a number over INT_MAX becomes negative, and the core refuses it
            .n = intake_int((uint32_t)from->n_token_ids),
            .released = from->released,
        };
    }
    core_drafts(c, link->node, drafts, (int)m->n_drafts, now_us);
    free(drafts);
}

// --- events

void node_link_handle(struct node_link *link, struct core *c, const node_message *m, int64_t now_us)
{
    if (link->ended) return;
    if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO) {
        handle_hello(c, link, m->hello, now_us);
        return;
    }
    if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_LOADING) {
        handle_loading(c, link, m->loading, now_us);
        return;
    }
    if (!link->node) {
        // Ignores later messages of a node that the core has lost.
        if (!link->greeted) link->ops->finish(link, STATUS_INVALID, "the first message must be Hello or Loading");
        return;
    }
    switch (m->kind_case) {
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT: handle_heartbeat(c, link, m->heartbeat, now_us); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED: handle_scores(c, link, m->scored, now_us); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP: handle_step(c, link, m->step, now_us); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS: handle_drafts(c, link, m->drafts, now_us); break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING:
        core_draining(c, link->node, node_text(m->draining->reason).text, now_us);
        break;
    default: break; // a message that this version does not know
    }
}

void node_link_closed(struct node_link *link, struct core *c, int64_t now_us)
{
    if (link->node) core_detach(c, link->node, "its stream ended", now_us);
    if (link->loading) core_loading_end(c, link->loading, "its stream ended");
    link->node = NULL;
    link->loading = NULL;
}
