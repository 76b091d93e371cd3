// SPDX-License-Identifier: Apache-2.0
// The options for tracing, and the tracer that they configure. OpenTelemetry's environment variables are not read.
#pragma once

#include "lib/base/options.h"
#include "lib/tracing/tracer.h"

// The strings belong to the option table with TRACE_OPTION_ROWS, and live until options_free().
struct trace_options {
    char *endpoint, *tls_ca, *tls_cert, *tls_key, *headers_file, *service_name;
    double sample;
    int64_t batch_ms;
};

// clang-format off
#define TRACE_OPTION_ROWS(t)                                                                                           \
    {.name = "-Tracing"},                                                                                              \
    {.name = "otlp-endpoint", .type = OPTION_STRING, .value = &(t).endpoint, .placeholder = "HOST:PORT",               \
     .help = "OpenTelemetry collector for traces of requests, with OTLP over gRPC; default: requests are "             \
             "not traced"},                                                                                            \
    {.name = "otlp-sample", .type = OPTION_REAL, .value = &(t).sample, .default_text = "1", .min = 0, .max = 1,        \
     .help = "share of the requests without a traceparent that are traced; a request with a traceparent is traced if " \
             "its sampled flag is set"},                                                                               \
    {.name = "otlp-batch-ms", .type = OPTION_INT, .value = &(t).batch_ms, .default_text = "1000", .min = 1,            \
     .max = 60000, .unit = "ms", .help = "time after which an ended request's spans are sent; a batch of 512 is sent " \
                                         "earlier"},                                                                   \
    {.name = "otlp-tls-ca", .type = OPTION_STRING, .value = &(t).tls_ca, .placeholder = "FILE",                        \
     .help = "connect to the collector with TLS; authorities of its certificate, in PEM; default: plain text"},        \
    {.name = "otlp-tls-cert", .type = OPTION_STRING, .value = &(t).tls_cert, .placeholder = "FILE",                    \
     .help = "the router's certificate for the collector, in PEM"},                                                    \
    {.name = "otlp-tls-key", .type = OPTION_STRING, .value = &(t).tls_key, .placeholder = "FILE",                      \
     .help = "private key of --otlp-tls-cert, in PEM"},                                                                \
    {.name = "otlp-headers-file", .type = OPTION_STRING, .value = &(t).headers_file, .placeholder = "FILE",            \
     .help = "headers of each call to the collector, such as its API key: a line 'name: value' for each"},             \
    {.name = "otlp-service-name", .type = OPTION_STRING, .value = &(t).service_name,                                   \
     .default_text = "forepack-router", .placeholder = "NAME", .help = "service.name of the traces"}
// clang-format on

// Checks for conflicts between options. Returns STATUS_INVALID with an error message. If `insecure` is true, secrets
// may be sent in plain text.
enum status trace_check(const struct trace_options *options, bool insecure);
// Sets *tracer_p to NULL if no endpoint is given. `host` is the address that clients connect to, as in --host.
enum status trace_open(const struct trace_options *options, const char *host, struct tracer **tracer_p);
