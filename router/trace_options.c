// SPDX-License-Identifier: Apache-2.0
#include "router/trace_options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/secret_file.h"

static enum status needs(const char *value, const char *name, const char *other_value, const char *other)
{
    if (!value || other_value) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--%s: needs --%s", name, other);
}

// Refuses to send headers in plain text, because they may contain an API key of the collector.
static enum status headers_check(const struct trace_options *o, bool insecure)
{
    bool loopback;
    if (!o->headers_file || o->tls_ca || insecure) return STATUS_OK;
    enum status status = address_is_loopback(o->endpoint, &loopback);
    if (status != STATUS_OK) return status_context(status, "--otlp-endpoint");
    if (loopback) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "--otlp-headers-file: its headers would go to %s in plain text: give --otlp-tls-ca, or "
                       "--insecure on a network that you trust",
                       o->endpoint);
}

enum status trace_check(const struct trace_options *o, bool insecure)
{
    TRY(needs(o->tls_ca, "otlp-tls-ca", o->endpoint, "otlp-endpoint"));
    TRY(needs(o->headers_file, "otlp-headers-file", o->endpoint, "otlp-endpoint"));
    TRY(needs(o->tls_cert, "otlp-tls-cert", o->tls_ca, "otlp-tls-ca"));
    TRY(needs(o->tls_cert, "otlp-tls-cert", o->tls_key, "otlp-tls-key"));
    TRY(needs(o->tls_key, "otlp-tls-key", o->tls_cert, "otlp-tls-cert"));
    return headers_check(o, insecure);
}

// Returns `host`, or the machine's name if `host` means all interfaces, which would tell the reader of a trace nothing.
static const char *server_address(const char *host, char *name, size_t room)
{
    bool any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0 || strcmp(host, "::") == 0;
    return any && gethostname(name, room) == 0 ? name : host;
}

enum status trace_open(const struct trace_options *o, const char *host, struct tracer **tracer_p)
{
    char name[256] = "", *headers = NULL;
    if (!o->endpoint) return STATUS_OK;
    if (o->headers_file) TRY(file_read_small(o->headers_file, true, &headers));
    const struct rpc_tls tls = {o->tls_cert, o->tls_key, o->tls_ca};
    const struct tracer_options options = {.endpoint = o->endpoint,
                                           .tls = tls.ca ? &tls : NULL,
                                           .headers = headers,
                                           .sample = o->sample,
                                           .batch_ms = o->batch_ms,
                                           .service_name = o->service_name,
                                           .server_address = server_address(host, name, sizeof name - 1)};
    enum status status = tracer_open(&options, tracer_p);
    if (headers) explicit_bzero(headers, strlen(headers));
    free(headers);
    return status == STATUS_OK ? STATUS_OK : status_context(status, "tracing");
}
