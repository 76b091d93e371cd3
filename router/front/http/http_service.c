// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_service.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/descriptors.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"
#include "router/front/http/http_anthropic.h"
#include "router/front/http/http_batches.h"
#include "router/front/http/http_files.h"
#include "router/front/http/http_generation_streamer.h"
#include "router/front/http/http_info.h"
#include "router/front/http/http_metrics.h"
#include "router/front/http/http_openai.h"
#include "router/front/http/http_responses.h"
#include "router/front/http/http_score.h"
#include "router/front/live/live_pages.h"
#include "router/front/live/metrics_reporter.h"
#include "router/front/request/intake.h"

enum { CONNECTIONS_MAX = 20000 };
enum { PING_MS = 15000, PING_CHECKS = 3 }; // default of ping_ms; number of checks for silent streams in ping_ms

// --- generations

static void generation_post(struct http_exchange *x, const struct http_api *api)
{
    struct http_service *service = http_context(x);
    http_generation_start(x, service->front, &service->streams, api);
}

static void chat_post(struct http_exchange *x)
{
    generation_post(x, &http_chat);
}

static void completions_post(struct http_exchange *x)
{
    generation_post(x, &http_completions);
}

static void responses_post(struct http_exchange *x)
{
    generation_post(x, &http_responses);
}

static void messages_post(struct http_exchange *x)
{
    generation_post(x, &http_anthropic);
}

// --- routes

#define ROUTE(method_, path_, handler)                                                                                 \
    {                                                                                                                  \
        .method = method_, .path = path_, .on_request = handler                                                        \
    }
static const struct http_route routes[] = {
    ROUTE("POST", "/v1/chat/completions", chat_post),
    ROUTE("POST", "/v1/completions", completions_post),
    ROUTE("POST", "/v1/responses", responses_post),
    ROUTE("POST", "/v1/responses/input_tokens", http_input_tokens_post),
    ROUTE("POST", "/v1/messages", messages_post),
    ROUTE("POST", "/v1/messages/count_tokens", http_count_tokens_post),
    ROUTE("POST", "/v1/score", http_score_post),
    {.method = "POST",
     .path = "/v1/files",
     .on_head = http_upload_on_head,
     .on_body = http_upload_on_body,
     .on_request = http_upload_on_request,
     .on_close = http_upload_on_close},
    ROUTE("GET", "/v1/files", http_files_list),
    {.method = "GET",
     .path = "/v1/files/*",
     .on_request = http_files_get,
     .on_drain = http_download_on_drain,
     .on_close = http_download_on_close},
    ROUTE("DELETE", "/v1/files/*", http_files_delete),
    ROUTE("POST", "/v1/batches", http_batches_post),
    ROUTE("GET", "/v1/batches", http_batches_list),
    ROUTE("POST", "/v1/batches/*", http_batches_cancel),
    ROUTE("GET", "/v1/batches/*", http_batches_get),
    ROUTE("POST", "/v1/compress", http_compress_post),
    ROUTE("GET", "/v1/models", http_models_get),
    ROUTE("GET", "/v1/models/*", http_models_get),
    ROUTE("POST", "/tokenize", http_tokenize_post),
    ROUTE("POST", "/detokenize", http_detokenize_post),
    ROUTE("GET", "/tokenizer_info", http_tokenizer_info_get),
    ROUTE("GET", "/health", http_health_get),
    ROUTE("GET", "/ready", http_ready_get),
    ROUTE("GET", "/version", http_version_get),
    ROUTE("GET", "/metrics", http_metrics_get),
    ROUTE("GET", "/", live_page_get),
    ROUTE("GET", "/live/style.css", live_style_get),
    ROUTE("GET", "/live/page.js", live_script_get),
    {.method = "GET", .path = "/live/events", .on_request = live_events_get, .on_close = live_events_on_close},
};
enum { N_ROUTES = sizeof routes / sizeof *routes };

// Returns the limit in bytes of a body: the largest body that a prompt within the context can need. JSON can need
// six bytes for one byte of text. Returns 0 if only the server's limit applies. This is so for completions, because
// one body may have many prompts.
static size_t body_limit(const struct front *front, const struct http_route *route, size_t server_limit)
{
    enum { ESCAPED_BYTES = 6 };
    size_t limit = intake_message_limit(front, front->config.max_context) * ESCAPED_BYTES;
    bool many = route->on_request == completions_post;
    return many || limit > server_limit || strcmp(route->method, "POST") != 0 ? 0 : limit;
}

static struct http_route *routes_create(const struct front *front, const struct http_service_options *options)
{
    enum { FORM_BYTES = 64 << 10, BATCH_BODY_BYTES = 256 << 10 }; // limits: an upload without its file; a new batch
    struct http_route *list = mem_alloc_array(N_ROUTES + 1, sizeof *list);
    for (int i = 0; i < N_ROUTES; i++) {
        list[i] = routes[i];
        if (!list[i].on_head) list[i].on_head = http_call_on_head;
        if (!list[i].on_close) list[i].on_close = http_call_on_close;
        list[i].max_body_bytes = body_limit(front, &list[i], options->max_body_bytes);
        if (list[i].on_body) list[i].max_body_bytes = options->batching.store.file_bytes + FORM_BYTES;
        if (list[i].on_request == http_batches_post) list[i].max_body_bytes = BATCH_BODY_BYTES;
    }
    return list;
}

// --- pings

static void event_ping(struct core *c, void *arg, int64_t now_us)
{
    struct http_service *service = arg;
    http_streams_ping(&service->streams, now_us);
}

static void *pinger_run(void *arg)
{
    struct http_service *service = arg;
    pthread_mutex_lock(&service->lock);
    int64_t next_us = clock_now_us() + service->ping_every_us;
    while (!service->closing) {
        if (monotonic_cond_wait(&service->wake, &service->lock, next_us)) continue;
        loop_post(service->front->loop, event_ping, service);
        next_us += service->ping_every_us;
    }
    pthread_mutex_unlock(&service->lock);
    return NULL;
}

// --- open and close

static enum status server_open(struct http_service *service, const struct http_service_options *options)
{
    const struct http_server_options server_options = {
        .host = options->host,
        .port = options->port,
        .tls = options->tls,
        .routes = service->routes,
        .context = service,
        .max_connections = descriptors_share(9, CONNECTIONS_MAX),
        .max_connections_per_address = options->max_connections_per_address,
        .trusted_proxies = options->trusted_proxies,
        .site = options->site,
        .proof = options->proof,
        .max_body_bytes = options->max_body_bytes,
        .max_bodies_bytes = options->max_bodies_bytes,
        .max_unread_bytes = options->max_unread_bytes,
        .max_all_unread_bytes = options->max_all_unread_bytes,
        .stall_ms = options->stall_ms,
        .max_connection_age_ms = options->max_connection_age_ms,
        .error_body = http_error_body,
        .error_type = "application/json",
        .own_headers = http_own_headers,
    };
    return http_server_open(&server_options, &service->server);
}

enum status http_service_open(struct front *front, const struct http_service_options *options,
                              struct http_service **service_p)
{
    struct http_service *service = mem_alloc(sizeof *service);
    service->front = front;
    service->streams.whole = &front->whole;
    service->streams.ping_after_us = 1000 * (options->ping_ms ? options->ping_ms : PING_MS);
    service->ping_every_us = service->streams.ping_after_us / PING_CHECKS;
    service->started_s = (int64_t)time(NULL);
    service->routes = routes_create(front, options);
    service->reporter = metrics_reporter_open(front);
    service->live = live_pages_open(front);
    enum status status = server_open(service, options);
    if (status == STATUS_OK && options->batching.store.folder) {
        status = http_batching_open(service, &options->batching, &service->batching);
        if (status != STATUS_OK) http_server_close(service->server, 0);
    }
    if (status != STATUS_OK) {
        live_pages_close(service->live);
        live_pages_free(service->live);
        metrics_reporter_close(service->reporter);
        free(service->routes);
        free(service);
        return status;
    }
    pthread_mutex_init(&service->lock, NULL);
    monotonic_cond_init(&service->wake);
    thread_start(&service->pinger, "ping", pinger_run, service);
    *service_p = service;
    return STATUS_OK;
}

enum status http_service_reload(struct http_service *service)
{
    return service ? http_server_reload(service->server) : STATUS_OK;
}

void http_service_drain(struct http_service *service)
{
    if (service) http_batching_stop(service->batching);
}

int http_service_port(const struct http_service *service)
{
    return service ? http_server_port(service->server) : -1;
}

void http_service_close(struct http_service *service, int grace_ms)
{
    if (!service) return;
    pthread_mutex_lock(&service->lock);
    service->closing = true;
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->lock);
    pthread_join(service->pinger, NULL);
    live_pages_close(service->live);
    http_batching_stop(service->batching);
    http_server_close(service->server, grace_ms);
    metrics_reporter_close(service->reporter);
}

void http_service_free(struct http_service *service)
{
    if (!service) return;
    live_pages_free(service->live);
    http_batching_close(service->batching);
    bytes_free(&service->streams.scratch);
    pthread_cond_destroy(&service->wake);
    pthread_mutex_destroy(&service->lock);
    free(service->routes);
    free(service);
}
