// SPDX-License-Identifier: Apache-2.0
#include "router/front/grpc/wire_request.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/random_number.h"
#include "lib/base/utf8.h"
#include "lib/text/generation_wire.h"
#include "lib/text/prefill_limit.h"
#include "lib/text/schema_close.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/core/resume.h"
#include "router/front/request/client_rules.h"

enum { PINNED_MAX = 1024 };

static char *request_id_create(void)
{
    return mem_format("req-%016llx", (unsigned long long)random_number());
}

static enum status logit_bias_read(const Forepack__V1__SamplingOptions *m, struct logit_bias *bias)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < m->n_logit_bias && status == STATUS_OK; i++)
        status = logit_bias_add(bias, m->logit_bias[i]->key, (double)m->logit_bias[i]->value);
    return status;
}

static enum status choice_read(const Forepack__V1__GuidedChoice *m, struct grammar_spec *spec)
{
    if (!m->n_choices) return status_fail(STATUS_INVALID, "guided_choice: at least one choice is required");
    for (size_t i = 0; i < m->n_choices; i++)
        if (!*m->choices[i]) return status_fail(STATUS_INVALID, "guided_choice: choice %zu is empty", i);
    *spec = grammar_spec_choice((const char *const *)m->choices, m->n_choices);
    return STATUS_OK;
}

static enum status schema_read(const struct front *front, const char *given, struct grammar_spec *spec)
{
    char *text = mem_string(given);
    enum status status = front->close_schemas ? schema_text_close(&text) : STATUS_OK;
    *spec = grammar_spec_of(GRAMMAR_JSON_SCHEMA, text);
    return status;
}

static enum status grammar_read(const struct front *front, const Forepack__V1__SamplingOptions *m,
                                struct grammar_spec *spec)
{
    switch (m->guided_case) {
    case FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_JSON: return schema_read(front, m->guided_json, spec);
    case FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_REGEX:
        *spec = grammar_spec_of(GRAMMAR_REGEX, mem_string(m->guided_regex));
        return STATUS_OK;
    case FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_GRAMMAR:
        *spec = grammar_spec_of(GRAMMAR_LARK, mem_string(m->guided_grammar));
        return STATUS_OK;
    case FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_CHOICE: return choice_read(m->guided_choice, spec);
    default: return STATUS_OK;
    }
}

// Compiles the grammar, so that the router refuses an invalid grammar before a worker group gets it.
static enum status grammar_compile(const struct front *front, const struct grammar_spec *spec)
{
    struct grammar_matcher *matcher;
    if (spec->kind == GRAMMAR_NONE) return STATUS_OK;
    if (!front->grammars)
        return status_fail(STATUS_UNSUPPORTED, "structured output: llguidance is not installed on the router");
    enum status status = grammar_matcher_create(front->grammars, spec, &matcher);
    if (status != STATUS_OK) return status_context(status, "structured output");
    grammar_matcher_free(matcher);
    grammar_cache_add(front->valid_grammars, spec);
    return STATUS_OK;
}

bool wire_grammar_known(const struct front *front, const Forepack__V1__GenerateRequest *m)
{
    struct grammar_spec grammar = {0};
    if (!m->sampling || m->sampling->guided_case == FOREPACK__V1__SAMPLING_OPTIONS__GUIDED__NOT_SET) return true;
    if (m->resume && m->resume->n_token_ids) return false; // answer_resume() compiles it
    bool known = front->grammars && grammar_read(front, m->sampling, &grammar) == STATUS_OK &&
                 grammar_cache_has(front->valid_grammars, &grammar);
    grammar_spec_free(&grammar);
    return known;
}

static enum status sampling_read(const struct front *front, const Forepack__V1__SamplingOptions *m, struct sampling *s)
{
    sampling_defaults(s);
    if (!m) return STATUS_OK;
    TRY(logit_bias_read(m, &s->logit_bias));
    TRY(grammar_read(front, m, &s->grammar));
    return sampling_from_message(&m->base, s);
}

// Sets the seed of a request without one. A request that is sent again, to any router, gets the same seed.
static void seed_derive(const struct client *client, const char *id, struct sampling *s)
{
    struct hash_key key = cluster_token_key(client->front->cluster_token);
    const char *owner = client->principal ? principal_tenant(client->principal) : "";
    uint64_t parts[] = {hash_text(&key, id), hash_text(&key, owner)};
    s->seed = hash_bytes(&key, parts, sizeof parts);
}

// Decides keep rate and quality. The request's keep rate takes precedence over its quality, and both over the router's
// options. With a quality, the keep rate applies only if the speculators have no calibration. The keep rate is then 1
// if the request gives the quality. It is the default rate if the router gives the quality and the client asks for
// pruning.
static void prefill_settle_rate(const Forepack__V1__PrefillOptions *m, struct prefill *p)
{
    bool asked = m->mode == FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON ||
                 m->mode == FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_REQUIRED;
    struct prefill defaults;
    prefill_defaults(&defaults);
    if (m->keep_rate_given_case)
        p->quality = 0;
    else if (m->quality_given_case)
        p->keep_rate = 1;
    else if (p->quality > 0 && asked)
        p->keep_rate = defaults.keep_rate;
}

static enum status prefill_read(const struct front *front, const Forepack__V1__PrefillOptions *m, struct prefill *p)
{
    *p = front->prefill;
    if (!m) return STATUS_OK;
    switch (m->mode) {
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_UNSPECIFIED:
        if (m->keep_rate_given_case || m->quality_given_case) p->mode = PREFILL_AUTO;
        break;
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_AUTO: p->mode = PREFILL_AUTO; break;
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON: p->mode = PREFILL_ON; break;
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_OFF: p->mode = PREFILL_OFF; break;
    case FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_REQUIRED: p->mode = PREFILL_REQUIRED; break;
    default: return status_fail(STATUS_INVALID, "prefill.mode %d: must be AUTO, ON, OFF or REQUIRED", (int)m->mode);
    }
    switch (m->drafts) {
    case FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_UNSPECIFIED: break;
    case FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_AUTO: p->drafts = DRAFTS_AUTO; break;
    case FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_OFF: p->drafts = DRAFTS_OFF; break;
    default: return status_fail(STATUS_INVALID, "prefill.drafts %d: must be AUTO or OFF", (int)m->drafts);
    }
    TRY(prefill_from_message(&m->base, p));
    TRY(prefill_check(p));
    prefill_settle_rate(m, p);
    return STATUS_OK;
}

// Refuses prompt_logprobs if the client asks for pruning, because pruned tokens have no log-probabilities. Otherwise
// the request keeps its prompt whole.
static enum status prompt_logprobs_read(const Forepack__V1__PrefillOptions *m, struct request_spec *spec)
{
    if (spec->sampling.prompt_logprobs < 0) return STATUS_OK;
    bool prunes = m && (m->mode == FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON ||
                        m->mode == FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_REQUIRED ||
                        (m->keep_rate_given_case && m->keep_rate < 1) || (m->quality_given_case && m->quality < 1));
    if (prunes)
        return status_fail(STATUS_INVALID,
                           "log-probabilities of the prompt need all of its tokens: leave out keep_rate, "
                           "quality, and the prefill modes on and required");
    spec->prefill.mode = PREFILL_OFF;
    return STATUS_OK;
}

// Reads the mark of a resumed answer. Other requests decide by load and cost if they prune; this one prunes if the
// answer with the mark was pruned.
static void resume_read(const Forepack__V1__Resume *m, struct request *r)
{
    r->resume = (struct request_resume){.given = true, .mark = m->mark};
    if (m->mark) r->spec.prefill.mode = resume_mark_is_pruned(m->mark) ? PREFILL_REQUIRED : PREFILL_OFF;
}

// Limits the request's prefill options to what the rules for its client allow.
static enum status rules_apply(const struct client *client, const Forepack__V1__PrefillOptions *m,
                               struct request_spec *spec)
{
    const struct client_rules rules = client_rules_get(client);
    if (rules.drafts == DRAFT_RULE_OFF) {
        spec->drafts_limited = m && m->drafts == FOREPACK__V1__DRAFT_MODE__DRAFT_MODE_AUTO;
        spec->prefill.drafts = DRAFTS_OFF;
    }
    if (rules.prune.kind == PRUNE_REQUIRED && spec->sampling.prompt_logprobs >= 0)
        return status_fail(STATUS_DENIED,
                           "prompt_logprobs: log-probabilities of the prompt need all of its tokens, and "
                           "the operator requires that these prompts are pruned: leave them out");
    if (prefill_limit_prune(&rules.prune, &client->front->prefill, &spec->prefill)) spec->limited_by = rules.prune;
    return STATUS_OK;
}

// Adds a range that the client pins, to the whole prompt and to each turn whose prompt contains the range.
static void pinned_add(struct request_spec *spec, struct token_range range)
{
    spec->pinned[spec->n_pinned++] = range;
    for (int t = 0; t < spec->n_turns; t++) {
        struct prompt_turn *turn = &spec->turns[t];
        if (range.last >= turn->end) continue;
        turn->pinned = mem_resize(turn->pinned, (size_t)turn->n_pinned + 1, sizeof *turn->pinned);
        turn->pinned[turn->n_pinned++] = range;
    }
}

// Adds the client's pinned ranges to the chat template's pinned ranges.
static enum status pinned_read(const Forepack__V1__PrefillOptions *m, struct request *r)
{
    if (!m || !m->n_pinned) return STATUS_OK;
    if (m->n_pinned > PINNED_MAX) {
        return status_fail(STATUS_INVALID, "prefill.pinned: %zu ranges given, at most %d are allowed", m->n_pinned,
                           PINNED_MAX);
    }
    r->spec.pinned = mem_resize(r->spec.pinned, (size_t)r->spec.n_pinned + m->n_pinned, sizeof *r->spec.pinned);
    for (size_t i = 0; i < m->n_pinned; i++) {
        uint32_t first = m->pinned[i]->first, last = m->pinned[i]->last;
        if (first > last || last >= (uint32_t)r->spec.n_tokens) {
            return status_fail(STATUS_INVALID,
                               "prefill.pinned: %u to %u must be ascending and inside the prompt of %d tokens", first,
                               last, r->spec.n_tokens);
        }
        pinned_add(&r->spec, (struct token_range){(int32_t)first, (int32_t)last});
    }
    return STATUS_OK;
}

// Turns one message into JSON for the chat template.
static enum status message_read(const Forepack__V1__Message *m, size_t i, json_t **message_p)
{
    size_t bad;
    if (!utf8_valid(m->role, strlen(m->role), NULL))
        return status_fail(STATUS_INVALID, "messages[%zu]: role is not UTF-8", i);
    if (!utf8_valid((const char *)m->content.data, m->content.len, &bad))
        return status_fail(STATUS_INVALID, "messages[%zu]: content is not UTF-8: byte %zu is wrong", i, bad);
    *message_p = json_object();
    json_object_set_new(*message_p, "role", json_string(m->role));
    json_object_set_new(*message_p, "content",
                        json_stringn(m->content.len ? (const char *)m->content.data : "", m->content.len));
    return STATUS_OK;
}

// The prompt of a message: text, token ids or chat turns.
struct wire_prompt {
    const ProtobufCBinaryData *text;
    bool text_given; // as in struct intake_prompt
    const uint32_t *ids;
    size_t n_ids;
    const char *ids_field;    // as in struct intake_prompt
    enum context_words words; // as in struct intake_prompt
    struct Forepack__V1__Message *const *messages;
    size_t n_messages;
    const struct chat_conversation *conversation; // a chat that replaces `messages`; NULL: none
    bool wants_turns;                             // the positions of a chat's finished turns are needed
    int max_ids;                                  // as in struct intake_prompt
};

static enum status messages_read(const struct wire_prompt *prompt, json_t **messages_p)
{
    TRY(intake_check_messages(prompt->n_messages));
    enum status status = STATUS_OK;
    json_t *messages = json_array(), *message = NULL;
    for (size_t i = 0; i < prompt->n_messages && status == STATUS_OK; i++) {
        status = message_read(prompt->messages[i], i, &message);
        if (status == STATUS_OK) json_array_append_new(messages, message);
    }
    if (status == STATUS_OK)
        *messages_p = messages;
    else
        json_decref(messages);
    return status;
}

static enum status wire_prompt_read(const struct front *front, const struct wire_prompt *prompt,
                                    struct intake_tokens *tokens_p)
{
    json_t *messages = NULL;
    if (prompt->n_messages) TRY(messages_read(prompt, &messages));
    struct chat_conversation conversation = {.messages = messages};
    if (!messages && prompt->conversation) conversation = *prompt->conversation;
    conversation.wants_turns = prompt->wants_turns;
    const struct intake_prompt given = {.text = (const char *)prompt->text->data,
                                        .text_bytes = prompt->text->len,
                                        .text_given = prompt->text_given,
                                        .ids = prompt->ids,
                                        .n_ids = prompt->n_ids,
                                        .ids_field = prompt->ids_field,
                                        .words = prompt->words,
                                        .max_ids = prompt->max_ids,
                                        .conversation = messages || prompt->conversation ? &conversation : NULL};
    enum status status = intake_tokenise(front, &given, tokens_p);
    json_decref(messages);
    return status;
}

// --- traces

static void trace_admitted(struct request *r)
{
    if (r->trace) trace_phase_end(r->trace, TRACE_ADMIT, NULL, clock_now_us());
}

static void trace_tokenised(struct request *r, const char *operation, const char *model)
{
    if (!r->trace) return;
    r->trace->operation = operation;
    r->trace->request_model = model;
    trace_phase_end(r->trace, TRACE_TOKENISE, NULL, clock_now_us());
}

// Marks the trace of a request that shares the tokenised prompt of another request of its message.
static void trace_copied(struct request *r, const struct request *first)
{
    if (!r->trace || !first->trace) return;
    r->trace->operation = first->trace->operation;
    r->trace->request_model = first->trace->request_model;
    trace_admitted(r);
}

// --- requests

// Makes the shared beginning of the prompt (prefill.shared_tokens) its first turn.
static enum status shared_read(struct request_spec *spec)
{
    int n = spec->prefill.shared_tokens, most = spec->n_turns ? spec->turns[0].end : spec->n_tokens;
    if (n >= most)
        return status_fail(STATUS_INVALID, "shared_tokens %d: must be less than the %d prompt tokens%s", n, most,
                           spec->n_turns ? " before the first answer" : "");
    struct prompt_turn turn = {.end = n, .answer_end = n};
    turn.pinned = mem_alloc_array((size_t)spec->n_pinned, sizeof *turn.pinned);
    for (int i = 0; i < spec->n_pinned; i++) {
        const struct token_range *range = &spec->pinned[i];
        if (range->first < n)
            turn.pinned[turn.n_pinned++] = (struct token_range){range->first, range->last < n ? range->last : n - 1};
    }
    struct prompt_turn *turns = mem_alloc_array((size_t)spec->n_turns + 1, sizeof *turns);
    turns[0] = turn;
    if (spec->n_turns) memcpy(turns + 1, spec->turns, (size_t)spec->n_turns * sizeof *turns);
    free(spec->turns);
    spec->turns = turns;
    spec->n_turns++;
    return STATUS_OK;
}

// Reads the prompt. `model` is the model name that the client asks for. `operation` is trace_record.operation.
static enum status prompt_read(const struct front *front, const struct wire_prompt *given, const char *model,
                               const char *operation, const Forepack__V1__PrefillOptions *prefill, struct request *r)
{
    struct intake_tokens tokens;
    const struct prefill *p = &r->spec.prefill;
    struct wire_prompt prompt = *given;
    prompt.wants_turns = p->mode != PREFILL_OFF && p->conversation && !p->paper_exact;
    trace_admitted(r);
    enum status status = wire_prompt_read(front, &prompt, &tokens);
    trace_tokenised(r, operation, intake_model_name(front, model));
    TRY(status);
    r->spec.tokens = tokens.tokens;
    r->spec.n_tokens = tokens.n_tokens;
    r->spec.pinned = tokens.pinned;
    r->spec.n_pinned = tokens.n_pinned;
    r->spec.turns = tokens.turns;
    r->spec.n_turns = tokens.n_turns;
    TRY(pinned_read(prefill, r));
    return prompt.wants_turns && p->shared_tokens ? shared_read(&r->spec) : STATUS_OK;
}

static bool stop_string_valid(const ProtobufCBinaryData *stop)
{
    return stop->len && stop->len <= STOP_STRING_BYTES_MAX && !memchr(stop->data, 0, stop->len) &&
           utf8_valid((const char *)stop->data, stop->len, NULL);
}

static enum status text_stream_read(const struct front *front, const Forepack__V1__SamplingOptions *m,
                                    const struct text_stream *other, struct text_stream **text_p)
{
    if (other) {
        *text_p = text_stream_create_like(other);
        return STATUS_OK;
    }
    size_t n = m ? m->n_stop : 0;
    char *stops[STOP_STRINGS_MAX] = {NULL};
    if (n > STOP_STRINGS_MAX) {
        return status_fail(STATUS_INVALID, "stop: %zu strings given, at most %d are allowed", n, STOP_STRINGS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        if (!stop_string_valid(&m->stop[i]))
            return status_fail(STATUS_INVALID, "stop: each must be 1 to %d bytes of UTF-8", STOP_STRING_BYTES_MAX);
    }
    for (size_t i = 0; i < n; i++)
        stops[i] = mem_format("%.*s", (int)m->stop[i].len, (const char *)m->stop[i].data);
    enum status status = text_stream_create(front->tokenizer, (const char *const *)stops, (int)n, text_p);
    for (size_t i = 0; i < n; i++)
        free(stops[i]);
    return status;
}

// Reads the fields of a message that concern the queue. The caller has checked the tenant's name and the salt.
static void queue_read(const char *tenant, const char *cache_salt, int32_t priority, uint32_t ttft_deadline_ms,
                       struct request_spec *spec)
{
    spec->tenant = *tenant ? mem_string(tenant) : NULL;
    spec->cache_salt = *cache_salt ? mem_string(cache_salt) : NULL;
    spec->priority = priority;
    if (ttft_deadline_ms) spec->ttft_deadline_us = spec->arrived_us + 1000 * (int64_t)ttft_deadline_ms;
}

enum status wire_request_read(const struct client *client, const Forepack__V1__GenerateRequest *m,
                              const struct wire_options *options, struct request *r, struct text_stream **text_p)
{
    const struct front *front = client->front;
    const struct wire_prompt prompt = {.text = &m->text,
                                       .text_given = options->text_given,
                                       .ids = m->token_ids,
                                       .n_ids = m->n_token_ids,
                                       .ids_field = options->ids_field,
                                       .words = options->context.words,
                                       .messages = m->messages,
                                       .n_messages = m->n_messages,
                                       .conversation = options->conversation};
    TRY(intake_check_name("request_id", m->request_id));
    TRY(intake_check_model(front, m->model));
    TRY(intake_check_name("tenant", m->tenant));
    TRY(intake_check_name("cache_salt", m->cache_salt));
    TRY(sampling_read(front, m->sampling, &r->spec.sampling));
    TRY(sampling_check(&r->spec.sampling, front->config.vocab_size));
    if (!options->grammar_valid) TRY(grammar_compile(front, &r->spec.sampling.grammar));
    TRY(prefill_read(front, m->prefill, &r->spec.prefill));
    if (m->resume) resume_read(m->resume, r);
    TRY(prompt_logprobs_read(m->prefill, &r->spec));
    TRY(rules_apply(client, m->prefill, &r->spec));
    const char *operation = m->n_messages || options->conversation ? "chat" : "text_completion";
    TRY(prompt_read(front, &prompt, m->model, operation, m->prefill, r));
    TRY(sampling_resolve(&r->spec.sampling, r->spec.n_tokens, &front->config, options->default_tokens,
                         options->max_tokens_name ? options->max_tokens_name : "max_tokens", &options->context));
    r->spec.context = options->context;
    TRY(text_stream_read(front, m->sampling, options->text_of_other, text_p));
    r->spec.held_bytes = text_stream_stop_bytes(*text_p);
    r->spec.explain = m->explain;
    r->id = *m->request_id ? mem_string(m->request_id) : request_id_create();
    if (!m->sampling || m->sampling->seed_given_case != FOREPACK__V1__SAMPLING_OPTIONS__SEED_GIVEN_SEED)
        seed_derive(client, options->retry_id ? options->retry_id : r->id, &r->spec.sampling);
    r->resume.basis = resume_basis(r->spec.tokens, r->spec.n_tokens, &r->spec.sampling);
    queue_read(m->tenant, m->cache_salt, m->priority, m->ttft_deadline_ms, &r->spec);
    r->spec.background = client->background;
    return STATUS_OK;
}

struct text_stream *wire_request_copy_choice(const struct request *first, const struct text_stream *text_of_first,
                                             int index, struct request *r)
{
    trace_copied(r, first);
    request_copy_spec(first, r);
    r->spec.sampling.seed += (uint64_t)index;
    r->id = mem_format("%s-%d", first->id, index);
    return text_stream_create_like(text_of_first);
}

// Sets the fields of a request that ends with its score.
static void score_finish(const char *tenant, const char *cache_salt, int32_t priority, uint32_t ttft_deadline_ms,
                         struct request *r)
{
    sampling_defaults(&r->spec.sampling);
    r->spec.sampling.max_tokens = 1;
    r->id = request_id_create();
    queue_read(tenant, cache_salt, priority, ttft_deadline_ms, &r->spec);
    r->spec.score_only = r->spec.want_importance = true;
}

enum status wire_score_request_read(const struct front *front, const Forepack__V1__ScoreRequest *m,
                                    const struct wire_options *options, struct request *r)
{
    static const Forepack__V1__PrefillOptions no_options = FOREPACK__V1__PREFILL_OPTIONS__INIT;
    const struct wire_prompt prompt = {.text = &m->text,
                                       .text_given = options->text_given,
                                       .ids = m->token_ids,
                                       .n_ids = m->n_token_ids,
                                       .ids_field = options->ids_field,
                                       .words = options->context.words,
                                       .messages = m->messages,
                                       .n_messages = m->n_messages,
                                       .conversation = options->conversation};
    TRY(intake_check_model(front, m->model));
    TRY(intake_check_name("tenant", m->tenant));
    TRY(intake_check_name("cache_salt", m->cache_salt));
    Forepack__V1__PrefillOptions asked = *(m->prefill ? m->prefill : &no_options);
    asked.mode = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON; // the client asks for a score
    TRY(prefill_read(front, &asked, &r->spec.prefill));
    TRY(prompt_read(front, &prompt, m->model, "score", m->prefill, r));
    score_finish(m->tenant, m->cache_salt, m->priority, m->ttft_deadline_ms, r);
    return STATUS_OK;
}

// Returns the options of a prefill that keeps as much as the message asks for.
static enum status goal_read(const Forepack__V1__CompressRequest *m, int n_tokens, Forepack__V1__PrefillOptions *asked)
{
    asked->mode = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON;
    switch (m->goal_case) {
    case FOREPACK__V1__COMPRESS_REQUEST__GOAL_QUALITY:
        asked->quality_given_case = FOREPACK__V1__PREFILL_OPTIONS__QUALITY_GIVEN_QUALITY;
        asked->quality = m->quality;
        return STATUS_OK;
    case FOREPACK__V1__COMPRESS_REQUEST__GOAL_KEEP_RATE: asked->keep_rate = m->keep_rate; break;
    case FOREPACK__V1__COMPRESS_REQUEST__GOAL_TOKEN_BUDGET:
        if (!m->token_budget) return status_fail(STATUS_INVALID, "token_budget 0: must be 1 or more");
        asked->keep_rate = fmin(1, (double)m->token_budget / n_tokens);
        break;
    default: return STATUS_OK;
    }
    asked->keep_rate_given_case = FOREPACK__V1__PREFILL_OPTIONS__KEEP_RATE_GIVEN_KEEP_RATE;
    return STATUS_OK;
}

// Makes the JSON of the prompt or of the messages.
static enum status input_read(const Forepack__V1__CompressRequest *m, json_t **input_p)
{
    const struct wire_prompt prompt = {.messages = m->messages, .n_messages = m->n_messages};
    size_t bad;
    if (!m->n_messages == !m->text.len) return status_fail(STATUS_INVALID, "give either text or messages");
    if (m->n_messages) return messages_read(&prompt, input_p);
    if (!utf8_valid((const char *)m->text.data, m->text.len, &bad))
        return status_fail(STATUS_INVALID, "text: not UTF-8: byte %zu is wrong", bad);
    *input_p = json_stringn_nocheck((const char *)m->text.data, m->text.len);
    return STATUS_OK;
}

// Applies the rules for the client's prefill options. A request that keeps everything needs no score.
static void compress_rules_apply(const struct client *client, struct request_spec *spec)
{
    const struct client_rules rules = client_rules_get(client);
    if (prefill_limit_prune(&rules.prune, &client->front->prefill, &spec->prefill)) spec->limited_by = rules.prune;
    if (!prefill_prunes(&spec->prefill)) spec->prefill.mode = PREFILL_OFF;
}

enum status wire_compress_request_read(const struct client *client, const Forepack__V1__CompressRequest *m,
                                       json_t *input, struct request *r, struct compression **c_p)
{
    const struct front *front = client->front;
    Forepack__V1__PrefillOptions asked = FOREPACK__V1__PREFILL_OPTIONS__INIT;
    TRY(intake_check_name("tenant", m->tenant));
    TRY(intake_check_name("cache_salt", m->cache_salt));
    if (!json_incref(input)) TRY(input_read(m, &input));
    TRY(compression_create(input, m->cut_system, c_p));
    struct compression *c = *c_p;
    trace_admitted(r);
    enum status status = compression_tokenise(front, c, &r->spec.tokens);
    trace_tokenised(r, "compress", front->model_names[0]);
    TRY(status);
    r->spec.n_tokens = c->tokens_before;
    TRY(goal_read(m, c->tokens_before, &asked));
    TRY(prefill_read(front, &asked, &r->spec.prefill));
    compress_rules_apply(client, &r->spec);
    c->by_budget = m->goal_case == FOREPACK__V1__COMPRESS_REQUEST__GOAL_TOKEN_BUDGET;
    score_finish(m->tenant, m->cache_salt, m->priority, m->ttft_deadline_ms, r);
    r->spec.held_bytes = compression_bytes(c);
    return STATUS_OK;
}

// --- text and tokens

// Limits of token ids per call, to bound the work of a call.
enum { TOKENIZE_IDS_MAX = 1 << 20, DETOKENIZE_IDS_MAX = 1 << 20 };

enum status wire_tokenize(const struct front *front, const Forepack__V1__TokenizeRequest *m,
                          const struct chat_conversation *conversation, int32_t **tokens_p, int *n_p)
{
    TRY(intake_check_model(front, m->model));
    if (!m->n_messages && !conversation) {
        unsigned flags = TOKENIZER_PARSE_SPECIAL | (m->no_special ? 0 : TOKENIZER_ADD_SPECIAL);
        return intake_encode(front, (const char *)m->text.data, m->text.len, flags, TOKENIZE_IDS_MAX, tokens_p, n_p);
    }
    const struct wire_prompt prompt = {.text = &m->text,
                                       .messages = m->messages,
                                       .n_messages = m->n_messages,
                                       .conversation = conversation,
                                       .max_ids = TOKENIZE_IDS_MAX};
    struct intake_tokens tokens;
    TRY(wire_prompt_read(front, &prompt, &tokens));
    *tokens_p = tokens.tokens;
    *n_p = tokens.n_tokens;
    tokens.tokens = NULL;
    intake_tokens_fini(&tokens);
    return STATUS_OK;
}

enum status wire_detokenize(const struct front *front, const Forepack__V1__DetokenizeRequest *m, char **text_p,
                            size_t *text_bytes_p)
{
    TRY(intake_check_model(front, m->model));
    if (m->n_token_ids > DETOKENIZE_IDS_MAX) {
        return status_fail(STATUS_OUT_OF_RANGE, "token_ids: %zu given, at most %d are allowed", m->n_token_ids,
                           DETOKENIZE_IDS_MAX);
    }
    for (size_t i = 0; i < m->n_token_ids; i++) {
        if (m->token_ids[i] > INT_MAX)
            return status_fail(STATUS_INVALID, "token_ids: %u is not a token id", m->token_ids[i]);
    }
    unsigned flags = (m->keep_special ? 0 : TOKENIZER_SKIP_SPECIAL) | (m->continuation ? TOKENIZER_CONTINUATION : 0);
    return tokenizer_decode(front->tokenizer, (const int32_t *)m->token_ids, (int)m->n_token_ids, flags, text_p,
                            text_bytes_p);
}

void wire_token_ends(const struct front *front, const Forepack__V1__DetokenizeRequest *m, const char *text,
                     size_t text_bytes, uint32_t *ends)
{
    size_t sum = 0;
    for (size_t i = 0; i < m->n_token_ids; i++) {
        const char *piece;
        size_t size;
        tokenizer_piece(front->tokenizer, (int32_t)m->token_ids[i], &piece, &size);
        if (m->keep_special || !tokenizer_is_special(front->tokenizer, (int32_t)m->token_ids[i])) sum += size;
        ends[i] = (uint32_t)(sum < UINT32_MAX ? sum : UINT32_MAX);
    }
    size_t lost = sum > text_bytes ? sum - text_bytes : 0; // the text does not contain the blank of its first token
    for (size_t i = 0; i < m->n_token_ids; i++) {
        size_t end = ends[i] > lost ? ends[i] - lost : 0;
        if (end > text_bytes || i + 1 == m->n_token_ids) end = text_bytes;
        while (end > 0 && end < text_bytes && ((unsigned char)text[end] & 0xc0) == 0x80)
            end--;
        ends[i] = (uint32_t)end;
    }
}
