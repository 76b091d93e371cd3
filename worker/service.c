// SPDX-License-Identifier: Apache-2.0
// See service.h. Messages to the router are built in arrays allocated at the start, so a step allocates nothing here.
#include "worker/service.h"

#include <limits.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/generation_wire.h"

typedef Forepack__Cluster__V1__Sequence sequence_message;
typedef Forepack__Cluster__V1__Sampling sampling_message;
typedef Forepack__Cluster__V1__SequenceResult result_message;
typedef Forepack__Cluster__V1__TokenLogprob logprob_message;
typedef Forepack__Cluster__V1__StepResults step_message;

// One sequence's part of a StepResults.
struct answer {
    result_message result;
    uint32_t token;
    logprob_message logprob, *logprobs; // `logprobs` is the array of one element in `result`
};

struct service {
    struct scheduler *scheduler;
    const struct grammar_library *grammars; // borrowed; NULL: no structured output
    service_send_fn *send;
    void *arg;
    struct answer *answers;    // [max_seqs]
    result_message **results;  // [max_seqs] pointers to them
    logprob_message *logprobs; // [logit rows] of prompt tokens
    logprob_message **logprobs_list;
    struct token_range *kept; // kept ranges of the sequence being added; grows
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
    }
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    service->send(service->arg, &message);
}

static void send_refusal(struct service *service, uint64_t id, const char *sentence)
{
    log_event(LOG_WARN, "sequence_refused", LOG_REQUEST(id), LOG_FIELD("reason", sentence));
    result_message *result = &service->answers[0].result;
    *result = (result_message)FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT;
    result->request = id;
    result->finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR;
    result->error = (char *)sentence;
    send_results(service, 1, NULL);
}

static Forepack__Cluster__V1__Finish finish_message(enum sequence_finish finish)
{
    switch (finish) {
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

// `first`: the messages of the service that are not used yet.
static void prompt_logprobs_fill(struct service *service, size_t first, result_message *r,
                                 const struct sequence_output *out)
{
    r->n_prompt_logprobs = (size_t)out->n_prompt_logprobs;
    r->prompt_logprobs = service->logprobs_list + first;
    r->prompt_logprobs_from = (uint32_t)out->prompt_logprobs_from;
    for (int i = 0; i < out->n_prompt_logprobs; i++)
        logprob_fill(r->prompt_logprobs[i], &out->prompt_logprobs[i]);
}

static void answer_fill(struct answer *a, const struct sequence_output *out)
{
    result_message *r = &a->result;
    *r = (result_message)FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT;
    r->request = out->id;
    r->cached_tokens = (uint32_t)out->cached_tokens;
    r->finish = finish_message(out->finish);
    if (out->finish == SEQUENCE_ERROR) r->error = (char *)out->error;
    if (!out->has_token) return;
    a->token = (uint32_t)out->token.token;
    r->n_token_ids = 1;
    r->token_ids = &a->token;
    if (!out->has_logprob) return;
    logprob_fill(&a->logprob, &out->token);
    a->logprobs = &a->logprob;
    r->n_logprobs = 1;
    r->logprobs = &a->logprobs;
}

static void send_report(void *arg, const struct step_report *report)
{
    struct service *service = arg;
    size_t n_logprobs = 0;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *out = &report->outputs[i];
        answer_fill(&service->answers[i], out);
        prompt_logprobs_fill(service, n_logprobs, &service->answers[i].result, out);
        n_logprobs += (size_t)out->n_prompt_logprobs;
    }
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
    if (m->grammar_kind < 0 || (int)m->grammar_kind >= GRAMMAR_KINDS)
        return status_fail(STATUS_INVALID, "grammar_kind %d is not known", (int)m->grammar_kind);
    return sampling_from_message(&m->base, s);
}

// A matcher that has read what was generated before a replay.
static enum status matcher_create(const struct service *service, const struct sequence_request *request,
                                  struct grammar_matcher **matcher_p)
{
    const struct grammar_spec *spec = &request->sampling.grammar;
    if (spec->kind == GRAMMAR_NONE) return STATUS_OK;
    if (!service->grammars)
        return status_fail(STATUS_UNSUPPORTED, "structured output: llguidance is not installed on this worker");
    if (request->n_generated < 0 || request->n_generated > request->n_tokens)
        return status_fail(STATUS_INVALID, "%d tokens, %d of them generated", request->n_tokens, request->n_generated);
    TRY(grammar_spec_check(spec));
    TRY(grammar_matcher_create(service->grammars, spec, matcher_p));
    const int32_t *generated = request->tokens + request->n_tokens - request->n_generated;
    enum status status = grammar_matcher_accept(*matcher_p, generated, request->n_generated);
    if (status != STATUS_OK) grammar_matcher_free(*matcher_p);
    return status;
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

static enum status sequence_add(struct service *service, const sequence_message *m)
{
    struct sequence_request request = {
        .id = m->request,
        .tokens = (const int32_t *)m->token_ids, // a number above INT32_MAX becomes negative and is refused
        .n_tokens = int_from_number(m->n_token_ids),
        .n_generated = int_from_number(m->generated),
        .n_kept_ranges = int_from_number(m->n_kept),
        .prompt_tokens = int_from_number(m->prompt_tokens),
        .penalty_ids = (const int32_t *)m->penalty_ids,
        .n_penalty_ids = int_from_number(m->n_penalty_ids),
        .logprobs_from = int_from_number(m->prompt_logprobs_from),
        .salt = m->salt,
    };
    TRY(sampling_read(m->sampling, &request.sampling));
    kept_read(service, m);
    request.kept = service->kept;
    TRY(matcher_create(service, &request, &request.matcher));
    enum status status = scheduler_add(service->scheduler, &request);
    if (status != STATUS_OK) {
        grammar_matcher_free(request.matcher);
        return status;
    }
    log_event(LOG_DEBUG, "sequence_received", LOG_REQUEST(m->request), LOG_FIELD("tokens", request.n_tokens),
              LOG_FIELD("prompt_tokens", request.prompt_tokens), LOG_FIELD("generated", request.n_generated),
              LOG_FIELD("trace", (const char *)m->trace));
    return STATUS_OK;
}

void service_handle(struct service *service, const Forepack__Cluster__V1__RouterMessage *message)
{
    if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) {
        const Forepack__Cluster__V1__PrefillBin *bin = message->prefill_bin;
        for (size_t i = 0; i < bin->n_sequences; i++) {
            if (sequence_add(service, bin->sequences[i]) != STATUS_OK)
                send_refusal(service, bin->sequences[i]->request, status_message());
        }
    } else if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL) {
        for (size_t i = 0; i < message->cancel->n_requests; i++) // a request may have ended already
            scheduler_cancel(service->scheduler, message->cancel->requests[i]);
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
    service->answers = mem_alloc_array((size_t)limits->max_seqs, sizeof *service->answers);
    service->results = mem_alloc_array((size_t)limits->max_seqs, sizeof *service->results);
    for (int i = 0; i < limits->max_seqs; i++)
        service->results[i] = &service->answers[i].result;
    size_t logit_rows = (size_t)model_max_logit_rows(engine_model(engine));
    service->logprobs = mem_alloc_array(logit_rows, sizeof *service->logprobs);
    service->logprobs_list = mem_alloc_array(logit_rows, sizeof *service->logprobs_list);
    for (size_t i = 0; i < logit_rows; i++)
        service->logprobs_list[i] = &service->logprobs[i];
    *service_p = service;
    return STATUS_OK;
}

void service_free(struct service *service)
{
    scheduler_free(service->scheduler);
    free(service->answers);
    free(service->results);
    free(service->logprobs);
    free(service->logprobs_list);
    free(service->kept);
    free(service);
}

void service_set_grammars(struct service *service, const struct grammar_library *grammars)
{
    service->grammars = grammars;
}

void service_drop_all(struct service *service)
{
    scheduler_clear(service->scheduler);
}

bool service_busy(const struct service *service)
{
    return scheduler_busy(service->scheduler);
}

enum status service_step(struct service *service)
{
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
