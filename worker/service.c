// SPDX-License-Identifier: Apache-2.0
// Builds messages to the router in arrays that are allocated at the start, so that a step allocates nothing here.
#include "worker/service.h"

#include <limits.h>
#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/text/generation_wire.h"

typedef Forepack__Cluster__V1__Sequence sequence_message;
typedef Forepack__Cluster__V1__Sampling sampling_message;
typedef Forepack__Cluster__V1__SequenceResult result_message;
typedef Forepack__Cluster__V1__TokenLogprob logprob_message;
typedef Forepack__Cluster__V1__StepResults step_message;

struct service {
    struct scheduler *scheduler;
    struct grammar_compiler *compiler; // NULL: no structured output
    service_send_fn *send;
    void *arg;
    result_message *messages; // [max_seqs]
    result_message **results; // [max_seqs] pointers to `messages`
    uint32_t *tokens;         // [logit rows] tokens of all answers, one answer after the other
    // [logit rows] log-probabilities of the tokens of all answers and of prompt tokens
    logprob_message *logprobs;
    logprob_message **logprobs_list;
    size_t n_tokens, n_logprobs; // used entries of `tokens` and `logprobs`
    struct token_range *kept;    // kept ranges of the sequence being added; the array grows
    size_t kept_capacity;
};

// ---- to the router ----

static void send_results(struct service *service, size_t n, const struct step_report *report)
{
    step_message step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    step.n_results = n;
    step.results = service->results;
    if (report) {
        step.step_us = report->step_us < UINT32_MAX ? (uint32_t)report->step_us : UINT32_MAX;
        step.rows = (uint32_t)report->rows;
        step.pairs = (uint64_t)report->pairs;
        step.draft_length = (uint32_t)report->draft_length;
    }
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    service->send(service->arg, &message);
}

// `bin` is the bin that had the sequence, or 0.
static void send_refusal(struct service *service, uint64_t id, uint64_t bin, const char *sentence)
{
    log_event(LOG_WARN, "sequence_refused", LOG_REQUEST(id), LOG_FIELD("reason", sentence));
    result_message *result = service->results[0];
    *result = (result_message)FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT;
    result->request = id;
    result->bin_id = bin;
    result->finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR;
    result->error = (char *)sentence;
    send_results(service, 1, NULL);
}

static Forepack__Cluster__V1__Finish finish_message(const struct sequence_output *out)
{
    if (out->grammar_failed) return FOREPACK__CLUSTER__V1__FINISH__FINISH_GRAMMAR;
    switch (out->finish) {
    case SEQUENCE_GOES_ON: return FOREPACK__CLUSTER__V1__FINISH__FINISH_NONE;
    case SEQUENCE_STOP: return FOREPACK__CLUSTER__V1__FINISH__FINISH_STOP;
    case SEQUENCE_LENGTH: return FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH;
    case SEQUENCE_ERROR: break;
    }
    return FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR;
}

static void logprob_fill(logprob_message *m, const struct sampled_token *token)
{
    *m = (logprob_message)FOREPACK__CLUSTER__V1__TOKEN_LOGPROB__INIT;
    m->token_id = (uint32_t)token->token; // never negative
    m->logprob = token->logprob;
    m->rank = (uint32_t)token->rank;
    m->n_top_ids = m->n_top_logprobs = (size_t)token->n_top;
    m->top_ids = (uint32_t *)token->top_id;
    m->top_logprobs = (float *)token->top_logprob;
}

// Returns the messages of `n` log-probabilities, in the arrays of the service.
static logprob_message **logprobs_fill(struct service *service, const struct sampled_token *tokens, int n)
{
    logprob_message **list = service->logprobs_list + service->n_logprobs;
    for (int i = 0; i < n; i++)
        logprob_fill(list[i], &tokens[i]);
    service->n_logprobs += (size_t)n;
    return list;
}

static void tokens_fill(struct service *service, result_message *r, const struct sequence_output *out)
{
    r->n_token_ids = (size_t)out->n_tokens;
    r->token_ids = service->tokens + service->n_tokens;
    for (int i = 0; i < out->n_tokens; i++)
        r->token_ids[i] = (uint32_t)out->tokens[i].token;
    service->n_tokens += r->n_token_ids;
    if (!out->has_logprobs) return;
    r->n_logprobs = r->n_token_ids;
    r->logprobs = logprobs_fill(service, out->tokens, out->n_tokens);
}

static void result_fill(struct service *service, result_message *r, const struct sequence_output *out)
{
    *r = (result_message)FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT;
    r->request = out->id;
    r->bin_id = out->bin;
    r->cached_tokens = (uint32_t)out->cached_tokens;
    r->finish = finish_message(out);
    if (out->finish == SEQUENCE_ERROR) r->error = (char *)out->error;
    r->draft_tokens = (uint32_t)out->drafted;
    r->draft_accepted_tokens = (uint32_t)out->draft_accepted;
    tokens_fill(service, r, out);
    r->n_prompt_logprobs = (size_t)out->n_prompt_logprobs;
    r->prompt_logprobs = logprobs_fill(service, out->prompt_logprobs, out->n_prompt_logprobs);
    r->prompt_logprobs_from = (uint32_t)out->prompt_logprobs_from;
}

static void send_report(void *arg, const struct step_report *report)
{
    struct service *service = arg;
    service->n_tokens = service->n_logprobs = 0;
    for (int i = 0; i < report->n_outputs; i++)
        result_fill(service, service->results[i], &report->outputs[i]);
    send_results(service, (size_t)report->n_outputs, report);
}

// ---- from the router ----

// A number above INT_MAX exceeds every limit, so the later checks refuse INT_MAX as well.
static int int_from_number(uint64_t number)
{
    return number < INT_MAX ? (int)number : INT_MAX;
}

// The logit bias is borrowed from the message. sampling_check() checks the values.
static enum status sampling_read(const sampling_message *m, struct sampling *s)
{
    sampling_defaults(s);
    if (!m) return status_fail(STATUS_INVALID, "the sampling parameters are missing");
    if (m->n_logit_bias != m->n_logit_bias_ids) {
        return status_fail(STATUS_INVALID, "logit_bias: %zu numbers for %zu tokens", m->n_logit_bias,
                           m->n_logit_bias_ids);
    }
    // A number above INT32_MAX becomes negative and is refused.
    s->logit_bias =
        (struct logit_bias){(int32_t *)m->logit_bias_ids, m->logit_bias, int_from_number(m->n_logit_bias_ids)};
    s->grammar = grammar_spec_of((enum grammar_kind)m->grammar_kind, m->grammar);
    if ((uint32_t)m->grammar_kind >= GRAMMAR_KINDS) // the cast also catches negative numbers
        return status_fail(STATUS_INVALID, "grammar_kind %d is not known", (int)m->grammar_kind);
    return sampling_from_message(&m->base, s);
}

static enum status grammar_check(const struct service *service, const struct grammar_spec *spec)
{
    if (spec->kind == GRAMMAR_NONE) return STATUS_OK;
    if (!service->compiler)
        return status_fail(STATUS_UNSUPPORTED, "structured output: llguidance is not installed on this worker");
    return grammar_spec_check(spec);
}

// Starts to compile the request's grammar. The matcher begins with the tokens that were generated before a replay.
static void grammar_compile(struct service *service, const struct sequence_request *request)
{
    const struct grammar_spec *spec = &request->sampling.grammar;
    if (spec->kind == GRAMMAR_NONE) return;
    int n = request->n_generated;
    grammar_compiler_add(service->compiler, request->id, spec, request->tokens + request->n_tokens - n, n);
}

// Passes each compiled matcher to the sequence that waits for it. Refuses a sequence whose grammar did not compile.
static void receive_matchers(struct service *service)
{
    struct grammar_compiled compiled;
    while (service->compiler && grammar_compiler_take(service->compiler, &compiled)) {
        if (compiled.matcher) {
            scheduler_set_matcher(service->scheduler, compiled.id, compiled.matcher);
        } else {
            scheduler_cancel(service->scheduler, compiled.id);
            send_refusal(service, compiled.id, 0, compiled.reason);
        }
        free(compiled.reason);
    }
}

static void cancel(struct service *service, uint64_t id)
{
    if (service->compiler) grammar_compiler_drop(service->compiler, id);
    scheduler_cancel(service->scheduler, id); // no effect if the request has ended already
}

static void kept_read(struct service *service, const sequence_message *m)
{
    if (m->n_kept > service->kept_capacity) {
        service->kept_capacity = 2 * m->n_kept;
        service->kept = mem_resize(service->kept, service->kept_capacity, sizeof *service->kept);
    }
    for (size_t i = 0; i < m->n_kept; i++)
        service->kept[i] = (struct token_range){int_from_number(m->kept[i]->first), int_from_number(m->kept[i]->last)};
}

static enum status sequence_add(struct service *service, uint64_t bin, const sequence_message *m)
{
    struct sequence_request request = {
        .id = m->request,
        .bin = bin,
        .tokens = (const int32_t *)m->token_ids, // a number above INT32_MAX becomes negative and is refused
        .n_tokens = int_from_number(m->n_token_ids),
        .n_generated = int_from_number(m->generated),
        .n_kept_ranges = int_from_number(m->n_kept),
        .prompt_tokens = int_from_number(m->prompt_tokens),
        .penalty_ids = (const int32_t *)m->penalty_ids,
        .n_penalty_ids = int_from_number(m->n_penalty_ids),
        .logprobs_from = int_from_number(m->prompt_logprobs_from),
        .salt = m->salt,
        .draft = (const int32_t *)m->draft_ids, // numbers above INT32_MAX: as for token_ids
        .n_draft = int_from_number(m->n_draft_ids),
        .prompt_lookup = m->drafts,
        .background = m->background,
    };
    TRY(sampling_read(m->sampling, &request.sampling));
    kept_read(service, m);
    request.kept = service->kept;
    TRY(grammar_check(service, &request.sampling.grammar));
    TRY(scheduler_add(service->scheduler, &request));
    grammar_compile(service, &request);
    log_event(LOG_DEBUG, "sequence_received", LOG_REQUEST(m->request), LOG_FIELD("tokens", request.n_tokens),
              LOG_FIELD("prompt_tokens", request.prompt_tokens), LOG_FIELD("generated", request.n_generated),
              LOG_FIELD("trace", (const char *)m->trace));
    return STATUS_OK;
}

// Ignores a refused draft: the sequence may have ended while its draft was on the way.
static void set_draft(struct service *service, const Forepack__Cluster__V1__Draft *m)
{
    enum status status = scheduler_set_draft(service->scheduler, m->request, int_from_number(m->from),
                                             (const int32_t *)m->token_ids, int_from_number(m->n_token_ids));
    if (status != STATUS_OK) log_event(LOG_DEBUG, "draft_refused", LOG_REQUEST(m->request), LOG_REASON);
}

void service_handle(struct service *service, const Forepack__Cluster__V1__RouterMessage *message)
{
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) {
        const Forepack__Cluster__V1__PrefillBin *bin = message->prefill_bin;
        for (size_t i = 0; i < bin->n_sequences; i++) {
            if (sequence_add(service, bin->bin_id, bin->sequences[i]) != STATUS_OK)
                send_refusal(service, bin->sequences[i]->request, bin->bin_id, status_message());
        }
    } else if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL) {
        for (size_t i = 0; i < message->cancel->n_requests; i++)
            cancel(service, message->cancel->requests[i]);
    } else if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_DRAFTS) {
        for (size_t i = 0; i < message->drafts->n_drafts; i++)
            set_draft(service, message->drafts->drafts[i]);
    }
}

// ---- the service ----

enum status service_create(struct engine *engine, const struct scheduler_limits *limits, service_send_fn *send,
                           void *arg, struct service **service_p)
{
    struct service *service = mem_alloc(sizeof *service);
    enum status status = scheduler_create(engine, limits, send_report, service, &service->scheduler);
    if (status != STATUS_OK) {
        free(service);
        return status;
    }
    service->send = send;
    service->arg = arg;
    service->messages = mem_alloc_array((size_t)limits->max_seqs, sizeof *service->messages);
    service->results = mem_alloc_array((size_t)limits->max_seqs, sizeof *service->results);
    for (int i = 0; i < limits->max_seqs; i++)
        service->results[i] = &service->messages[i];
    size_t logit_rows = (size_t)model_max_logit_rows(engine_model(engine));
    service->tokens = mem_alloc_array(logit_rows, sizeof *service->tokens);
    service->logprobs = mem_alloc_array(logit_rows, sizeof *service->logprobs);
    service->logprobs_list = mem_alloc_array(logit_rows, sizeof *service->logprobs_list);
    for (size_t i = 0; i < logit_rows; i++)
        service->logprobs_list[i] = &service->logprobs[i];
    *service_p = service;
    return STATUS_OK;
}

void service_free(struct service *service)
{
    grammar_compiler_free(service->compiler);
    scheduler_free(service->scheduler);
    free(service->messages);
    free(service->results);
    free(service->tokens);
    free(service->logprobs);
    free(service->logprobs_list);
    free(service->kept);
    free(service);
}

void service_set_grammars(struct service *service, const struct grammar_library *grammars, grammar_wake_fn *wake)
{
    grammar_compiler_free(service->compiler);
    service->compiler = grammars ? grammar_compiler_create(grammars, wake, service->arg) : NULL;
}

void service_drop_link(struct service *service, int link)
{
    uint64_t held;
    while (scheduler_find_held(service->scheduler, link, &held))
        cancel(service, held); // also drops the job of its grammar
    scheduler_drop_link(service->scheduler, link);
}

bool service_busy(const struct service *service)
{
    return scheduler_busy(service->scheduler) || scheduler_holds(service->scheduler);
}

bool service_ready(const struct service *service)
{
    return scheduler_busy(service->scheduler);
}

enum status service_step(struct service *service)
{
    receive_matchers(service);
    return scheduler_step(service->scheduler);
}

struct scheduler_load service_get_load(const struct service *service)
{
    return scheduler_get_load(service->scheduler);
}

const struct scheduler *service_scheduler(const struct service *service)
{
    return service->scheduler;
}
