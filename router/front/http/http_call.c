// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_call.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/random_number.h"
#include "router/front/http/http_service.h"
#include "router/front/http/json_anthropic_answer.h"
#include "router/front/request/request_trace.h"

#define RETRY_US 1000000

const char http_exposed_headers[] =
    "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, x-forepack-prompt-tokens, "
    "x-forepack-kept-tokens, x-forepack-prefill, x-forepack-keep-rate, x-forepack-prefill-reason, "
    "x-forepack-prefill-limit, x-forepack-max-tokens, x-forepack-tools-left-out";

// --- errors

struct error_kind {
    int http_status;
    const char *type, *code; // members of OpenAI's error object; code NULL: null
};

static const struct error_kind kinds[STATUS_COUNT] = {
    [STATUS_OK] = {200, "", NULL},
    [STATUS_INVALID] = {400, "invalid_request_error", NULL},
    [STATUS_NOT_FOUND] = {404, "invalid_request_error", "model_not_found"},
    [STATUS_EXISTS] = {409, "invalid_request_error", NULL},
    [STATUS_MISMATCH] = {409, "invalid_request_error", NULL},
    [STATUS_OUT_OF_RANGE] = {400, "invalid_request_error", "context_length_exceeded"},
    [STATUS_EXHAUSTED] = {429, "rate_limit_error", "rate_limit_exceeded"},
    [STATUS_KEY_LIMIT] = {429, "rate_limit_error", "rate_limit_exceeded"},
    [STATUS_UNAVAILABLE] = {503, "server_error", "unavailable"},
    [STATUS_DEADLINE] = {504, "server_error", "deadline_exceeded"},
    [STATUS_CANCELLED] = {499, "server_error", "cancelled"},
    [STATUS_UNAUTHENTICATED] = {401, "invalid_request_error", "invalid_api_key"},
    [STATUS_DENIED] = {403, "invalid_request_error", "permission_denied"},
    [STATUS_UNSUPPORTED] = {400, "invalid_request_error", "unsupported_parameter"},
    [STATUS_DATA] = {400, "invalid_request_error", NULL},
    [STATUS_INTERNAL] = {500, "server_error", NULL},
};

static int http_status_of(enum status status)
{
    return kinds[(unsigned)status < STATUS_COUNT ? status : STATUS_INTERNAL].http_status;
}

// Returns the length of the field name at the start of an error message, such as "stop: ...", "top_p 2: ...",
// "messages[0]: ...". Returns 0 if the message does not start with a field name.
static size_t param_length(const char *message)
{
    size_t n = strspn(message, "abcdefghijklmnopqrstuvwxyz_0123456789");
    if (!n || !strchr(":[ .", message[n])) return 0;
    if (message[n] != ' ') return n;
    const char *value = message + n + 1;
    return isdigit((unsigned char)*value) || *value == '-' || *value == '\'' ? n : 0;
}

static void error_add(struct bytes *out, const struct error_kind *kind, const char *message)
{
    size_t param = kind->http_status < 500 ? param_length(message) : 0;
    JSON_ADD(out, "{\"error\":{\"message\":");
    json_add_string(out, message);
    JSON_ADD(out, ",\"type\":");
    json_add_string(out, kind->type);
    JSON_ADD(out, ",\"param\":");
    if (param) {
        json_add_text(out, message, param);
    } else {
        JSON_ADD(out, "null");
    }
    JSON_ADD(out, ",\"code\":");
    json_add_string(out, kind->code);
    JSON_ADD(out, "}}");
}

void http_error_add(struct bytes *out, enum status status, const char *message)
{
    error_add(out, &kinds[(unsigned)status < STATUS_COUNT ? status : STATUS_INTERNAL], message);
}

// Returns true for paths of Anthropic's API, whose clients expect Anthropic's errors and the header request-id.
static bool is_anthropic(const char *path)
{
    static const char messages[] = "/v1/messages";
    return strncmp(path, messages, strlen(messages)) == 0;
}

static void add_retry(struct http_exchange *x, int64_t retry_us)
{
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)(retry_us + 999999) / 1000000);
    http_add_header(x, "Retry-After", number);
    snprintf(number, sizeof number, "%lld", (long long)(retry_us + 999) / 1000);
    http_add_header(x, "retry-after-ms", number); // OpenAI's client libraries read this header
}

// Returns false for an error that is sent with x-should-retry: false. The official clients of both APIs retry after
// 408, 409, 429 and every 5xx, unless they get this header. INTERNAL must not be retried: a request that crashed worker
// groups would crash more groups. DEADLINE must not be retried: requests that are refused to shed load would come back
// three times.
static bool may_succeed_later(enum status status)
{
    return status != STATUS_INTERNAL && status != STATUS_DEADLINE;
}

static void fail_until(struct http_exchange *x, enum status status, const char *message, int64_t retry_us)
{
    struct bytes body = {0};
    if (is_anthropic(http_path(x))) {
        anthropic_add_error(&body, status, message);
    } else {
        http_error_add(&body, status, message);
    }
    if (status == STATUS_EXHAUSTED || status == STATUS_KEY_LIMIT || status == STATUS_UNAVAILABLE)
        add_retry(x, retry_us);
    if (!may_succeed_later(status)) http_add_header(x, "x-should-retry", "false");
    if (status == STATUS_UNAUTHENTICATED) http_add_header(x, "WWW-Authenticate", "Bearer");
    http_respond(x, http_status_of(status), "application/json", body.data, body.n);
    bytes_free(&body);
}

void http_fail(struct http_exchange *x, enum status status, const char *message)
{
    fail_until(x, status, message, RETRY_US);
}

void http_refuse_until(struct http_exchange *x, enum status status, int64_t retry_us)
{
    fail_until(x, status, status_message(), retry_us ? retry_us : RETRY_US);
}

void http_refuse(struct http_exchange *x, enum status status)
{
    http_refuse_until(x, status, 0);
}

void http_fail_as(struct http_exchange *x, int http_status, const char *message)
{
    const struct error_kind kind = {http_status, http_status < 500 ? "invalid_request_error" : "server_error", NULL};
    struct bytes body = {0};
    error_add(&body, &kind, message);
    if (http_status == 507) http_add_header(x, "x-should-retry", "false");
    http_respond(x, http_status, "application/json", body.data, body.n);
    bytes_free(&body);
}

size_t http_error_body(const char *path, int http_status, const char *sentence, char *body, size_t room)
{
    const struct error_kind kind = {http_status, http_status < 500 ? "invalid_request_error" : "server_error", NULL};
    struct bytes out = {0};
    if (is_anthropic(path)) {
        anthropic_add_http_error(&out, http_status, sentence);
    } else {
        error_add(&out, &kind, sentence);
    }
    size_t n = out.n <= room ? out.n : 0;
    if (n) memcpy(body, out.data, n);
    bytes_free(&out);
    return n;
}

void http_answer_as(struct http_exchange *x, const char *content_type, const void *bytes, size_t size)
{
    if (http_response_fits(x, size)) {
        http_respond(x, 200, content_type, bytes, size);
    } else {
        http_fail(x, STATUS_UNAVAILABLE, "clients leave too many bytes of answers unread: try again later");
    }
}

void http_answer(struct http_exchange *x, const struct bytes *json)
{
    http_answer_as(x, "application/json", json->data, json->n);
}

// --- ids

static bool id_valid(const char *id)
{
    size_t n = strlen(id);
    for (size_t i = 0; i < n; i++) {
        if (id[i] <= ' ' || id[i] > '~') return false;
    }
    return n > 0 && n < HTTP_ID_ROOM;
}

// Writes the id in the header x-request-id if it is valid, else an id made from `number`.
static void request_id_write(const struct http_exchange *x, uint64_t number, char id[HTTP_ID_ROOM])
{
    const char *given = x ? http_header(x, "x-request-id") : NULL;
    if (given && id_valid(given)) {
        snprintf(id, HTTP_ID_ROOM, "%s", given);
    } else {
        snprintf(id, HTTP_ID_ROOM, "req-%016llx", (unsigned long long)number);
    }
}

size_t http_own_headers(const struct http_exchange *x, char *lines, size_t room)
{
    char id[HTTP_ID_ROOM];
    request_id_write(x, random_number(), id);
    bool twice = x && is_anthropic(http_path(x));
    int n = snprintf(lines, room, twice ? "x-request-id: %s\r\nrequest-id: %s\r\n" : "x-request-id: %s\r\n", id, id);
    return n > 0 && (size_t)n < room ? (size_t)n : 0;
}

// --- every exchange

static const struct front *front_of(const struct http_exchange *x)
{
    return ((const struct http_service *)http_context(x))->front;
}

// Returns true if the path needs no API key: the paths for load balancers (as with gRPC's health service), /metrics if
// the operator allows it, and the live page, which contains no data without its events.
static bool open_to_all(const struct front *front, const char *path)
{
    static const char *const open[] = {"/health", "/ready", "/version", "/", "/live/style.css", "/live/page.js"};
    if (strcmp(path, "/metrics") == 0) return front->metrics_open;
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (strcmp(path, open[i]) == 0) return true;
    return false;
}

static bool for_operators(const char *path)
{
    return strcmp(path, "/metrics") == 0 || strcmp(path, "/live/events") == 0;
}

// Finds the caller by its API key. OpenAI's clients send `authorization`, Anthropic's send `x-api-key`. The header
// `x-api-key` takes precedence, because a proxy may use `authorization` for its own key.
static enum status http_authorise(struct http_exchange *x, struct principal **principal_p)
{
    const struct front *front = front_of(x);
    struct identity *identity = front->identity;
    const char *key = http_header(x, "x-api-key");
    if (!identity || open_to_all(front, http_path(x))) return STATUS_OK;
    TRY(key ? identity_authenticate_key(identity, key, principal_p)
            : identity_authenticate(identity, http_header(x, "authorization"), principal_p));
    if (!for_operators(http_path(x)) || principal_is_operator(*principal_p)) return STATUS_OK;
    return status_fail(STATUS_DENIED, "%s needs an operator's API key", http_path(x));
}

typedef enum status admit_fn(struct principal *p, int64_t *retry_us_p);

static bool admit(struct http_exchange *x, admit_fn *limits)
{
    struct principal *p = ((struct http_call *)http_user(x))->principal;
    int64_t retry_us = 0;
    enum status status = p ? limits(p, &retry_us) : STATUS_OK;
    if (status == STATUS_OK) return true;
    front_refused(front_of(x), status);
    http_refuse_until(x, status, retry_us);
    return false;
}

bool http_admit(struct http_exchange *x)
{
    return admit(x, identity_admit);
}

bool http_admit_call(struct http_exchange *x)
{
    return admit(x, identity_admit_call);
}

struct http_call *http_call_create_local(struct principal *principal)
{
    struct http_call *call = mem_alloc(sizeof *call);
    call->number = random_number();
    request_id_write(NULL, call->number, call->request_id);
    call->principal = principal;
    call->background = true;
    return call;
}

const char *http_call_tenant(const struct http_exchange *x)
{
    const struct principal *p = ((struct http_call *)http_user(x))->principal;
    return p ? principal_tenant(p) : "";
}

bool http_call_open(struct http_exchange *x)
{
    struct http_call *call = mem_alloc(sizeof *call);
    call->number = random_number();
    request_id_write(x, call->number, call->request_id);
    http_set_user(x, call);
    http_add_header(x, "x-request-id", call->request_id);
    if (is_anthropic(http_path(x))) http_add_header(x, "request-id", call->request_id);
    enum status status = http_authorise(x, &call->principal);
    if (call->principal) http_prove(x);
    if (status == STATUS_OK) return true;
    front_refused(front_of(x), status);
    http_refuse(x, status);
    return false;
}

void http_call_on_head(struct http_exchange *x)
{
    http_call_open(x);
}

// Joins the `tracestate` headers into one list. The caller frees it.
static char *trace_state(const struct http_exchange *x)
{
    const char *more = http_header(x, "tracestate");
    char *state = mem_string(more);
    while (more && strlen(state) <= TRACE_STATE_BYTES_MAX && (more = http_header_after(x, "tracestate", more))) {
        char *both = mem_format("%s,%s", state, more);
        free(state);
        state = both;
    }
    return state;
}

void http_trace_open(struct http_exchange *x, struct client *client)
{
    if (!client->front->tracer) return;
    const char *parent = http_header(x, "traceparent");
    if (parent && http_header_after(x, "traceparent", parent)) parent = NULL;
    char *state = parent ? trace_state(x) : NULL;
    client_trace_open(client, parent, state, http_server_port(http_server_of(x)));
    client_trace_join(client);
    free(state);
}

void http_call_on_close(struct http_exchange *x, bool disconnected)
{
    struct http_call *call = http_user(x);
    if (call->client) client_close(call->client);
    intake_pool_cancel(front_of(x)->pool, &call->waiting);
    principal_unref(call->principal);
    free(call);
}
