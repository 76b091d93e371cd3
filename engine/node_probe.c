// SPDX-License-Identifier: Apache-2.0
#include "engine/node_probe.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/address.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "lib/http/http.h"

enum { CONNECTIONS_MAX = 64, CLOSE_MS = 1000 };

struct node_probe {
    struct node_vitals *vitals;
    const char *role;
    struct http_server *server;
};

// --- the routes

__attribute__((format(printf, 3, 4))) static void respond(struct http_exchange *x, int status, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    http_add_header(x, "cache-control", "no-store");
    http_respond(x, status, "text/plain; charset=utf-8", text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static struct node_picture picture_of(struct http_exchange *x)
{
    const struct node_probe *probe = http_context(x);
    struct node_picture picture;
    node_vitals_read(probe->vitals, &picture);
    return picture;
}

static void live_get(struct http_exchange *x)
{
    if (picture_of(x).live)
        respond(x, 200, "live\n");
    else
        respond(x, 503, "the node has work, but made no progress for %d s\n", NODE_LIVE_LIMIT_S);
}

static void ready_get(struct http_exchange *x)
{
    const struct node_picture now = picture_of(x);
    if (now.phase == NODE_PHASE_ATTACHED)
        respond(x, 200, "ready\n");
    else if (now.phase == NODE_PHASE_LOADING)
        respond(x, 503, "the node loads its model: %d %%\n", now.loaded_percent);
    else
        respond(x, 503, "the node is %s\n", node_phase_name(now.phase));
}

static void metric_add(FILE *out, const char *name, const char *type, const char *help, const char *labels,
                       double value)
{
    fprintf(out, "# HELP forepack:%s %s\n# TYPE forepack:%s %s\nforepack:%s%s %.15g\n", name, help, name, type, name,
            labels, value);
}

static void metrics_write(FILE *out, const struct node_probe *probe, const struct node_picture *now)
{
    char version[192];
    const bool cached = now->kv_blocks > 0;
    snprintf(version, sizeof version, "{version=\"%s\",commit=\"%s\",role=\"%s\"}", FOREPACK_VERSION, build_commit(),
             probe->role);
    metric_add(out, "build_info", "gauge", "Always 1.", version, 1);
    metric_add(out, "node_live", "gauge", "1 while the node makes progress, as in /live.", "", now->live);
    metric_add(out, "node_ready", "gauge", "1 while the node is attached to a router, as in /ready.", "",
               now->phase == NODE_PHASE_ATTACHED);
    metric_add(out, "node_routers_attached", "gauge", "Routers to which the node is attached.", "",
               now->routers_attached);
    metric_add(out, "node_routers", "gauge", "Routers of --router, each once if several addresses lead to it.", "",
               now->routers_known);
    metric_add(out, "node_draining", "gauge", "1 while the node drains.", "", now->phase == NODE_PHASE_DRAINING);
    metric_add(out, "node_loaded_ratio", "gauge", "Loaded share of the weights, 0 to 1.", "",
               now->loaded_percent / 100.0);
    metric_add(out, "num_requests_running", "gauge", "Running requests.", "", (double)now->running);
    metric_add(out, "num_requests_waiting", "gauge", "Requests that wait on the node.", "", (double)now->waiting);
    metric_add(out, "kv_blocks", "gauge", "Size of the KV cache in blocks.", "", (double)now->kv_blocks);
    metric_add(out, "kv_cache_usage_perc", "gauge", "Used share of the KV cache, 0 to 1.", "",
               cached ? 1 - (double)now->kv_blocks_free / (double)now->kv_blocks : 0);
    metric_add(out, "num_preemptions_total", "counter", "Preempted requests.", "", (double)now->preemptions);
    metric_add(out, "pass_stages_total", "counter", "Completed stages of forward passes, two for each layer.", "",
               (double)now->progress);
    metric_add(out, "log_lines_dropped_total", "counter", "Log lines that standard error did not accept in time.", "",
               (double)log_lines_dropped());
}

static void metrics_get(struct http_exchange *x)
{
    const struct node_picture now = picture_of(x);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) {
        respond(x, 503, "out of memory\n");
        return;
    }
    metrics_write(out, http_context(x), &now);
    fclose(out);
    http_respond(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, size);
    free(text);
}

static const struct http_route routes[] = {
    {.method = "GET", .path = "/live", .on_request = live_get},
    {.method = "GET", .path = "/ready", .on_request = ready_get},
    {.method = "GET", .path = "/metrics", .on_request = metrics_get},
    {0},
};

// --- the port

// Returns HOST:PORT; a port alone is one of loopback. The caller frees it.
static char *address_full(const char *address)
{
    const bool port = *address && strspn(address, "0123456789") == strlen(address);
    return port ? mem_format("127.0.0.1:%s", address) : mem_string(address);
}

enum status node_probe_check(const char *address, bool insecure)
{
    bool loopback = false;
    char *full = address_full(address);
    enum status status = address_is_loopback(full, &loopback);
    free(full);
    if (status != STATUS_OK) return status_context(status, "--probe-listen");
    if (loopback || insecure) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "--probe-listen %s: other machines could read this node's load without TLS: give a loopback "
                       "address, or --insecure on a network that you trust",
                       address);
}

enum status node_probe_open(const char *address, struct node_vitals *vitals, const char *role,
                            struct node_probe **probe_p)
{
    struct node_probe *probe = mem_alloc(sizeof *probe);
    *probe = (struct node_probe){.vitals = vitals, .role = role};
    char *host = address_full(address), *colon = strrchr(host, ':');
    *colon = 0;
    const struct http_server_options options = {.host = host,
                                                .port = atoi(colon + 1),
                                                .routes = routes,
                                                .context = probe,
                                                .max_connections = CONNECTIONS_MAX,
                                                .max_body_bytes = 1};
    enum status status = http_server_open(&options, &probe->server);
    if (status == STATUS_OK) {
        log_event(LOG_INFO, "probe_listening", LOG_FIELD("host", host),
                  LOG_FIELD("port", http_server_port(probe->server)));
        *probe_p = probe;
    } else {
        free(probe);
        status_context(status, "--probe-listen");
    }
    free(host);
    return status;
}

void node_probe_close(struct node_probe *probe)
{
    if (!probe) return;
    http_server_close(probe->server, CLOSE_MS);
    free(probe);
}
