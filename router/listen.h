// SPDX-License-Identifier: Apache-2.0
// The router's listeners: gRPC and HTTP for clients, gRPC for nodes. Each listener is a separate server, so that
// clients cannot call the methods for nodes.
//
// The rule of exposure: a port beyond loopback needs TLS, and nodes beyond loopback must also show a certificate or the
// cluster token. --insecure lifts both requirements.
#pragma once

#include "lib/base/options.h"
#include "router/front/front.h"

// Files and batches of the HTTP API.
struct batch_options {
    char *dir;
    int64_t window, file_mb, tenant_mb, total_mb, tenant_files, total_files;
};

// The strings belong to the option table with LISTEN_OPTION_ROWS, and live until options_free().
struct listen_options {
    char *host, *node_listen;
    char *tls_cert, *tls_key, *tls_client_ca;
    char *node_tls_cert, *node_tls_key, *node_tls_ca, *cluster_token_file;
    char *allowed_hosts, *cors_origin, *trusted_proxies;
    int64_t port, http_port, max_message_mb, max_answers_mb, max_keyless_mb, max_peers_mb, connections_per_address;
    struct batch_options batch;
    bool insecure;
};

// clang-format off
#define LISTEN_OPTION_ROWS(l)                                                                                          \
    {.name = "-Network"},                                                                                              \
    {.name = "host", .type = OPTION_STRING, .value = &(l).host, .default_text = "127.0.0.1", .placeholder = "ADDRESS", \
     .help = "address to listen on for clients; 0.0.0.0: all interfaces, IPv4; [::]: all interfaces, IPv4 and IPv6"},  \
    {.name = "port", .type = OPTION_INT, .value = &(l).port, .default_text = "50051", .max = 65535,                    \
     .help = "gRPC port for clients, KServe clients included; 0: a free port, which the log names"},                  \
    {.name = "http-port", .type = OPTION_INT, .value = &(l).http_port, .default_text = "8000", .min = -1, .max = 65535, \
     .help = "port of the HTTP API; 0: a free port, which the log names; -1: no HTTP API"},                                \
    {.name = "node-listen", .type = OPTION_STRING, .value = &(l).node_listen, .placeholder = "HOST:PORT",              \
     .help = "address to listen on for nodes; default: port 50052 of --host; port 0: a free port, which the log "      \
             "names"},                                                                                                 \
    {.name = "max-connections-per-address", .type = OPTION_INT, .value = &(l).connections_per_address, .max = 1000000,  \
     .default_text = "0", .help = "limit of connections from one address, for the gRPC port and the HTTP port each "     \
                                  "(IPv6: from one /64); an address that breaks limits again and again is refused for "    \
                                  "10 s; 0: no limit"},                                                                    \
    {.name = "trusted-proxies", .type = OPTION_STRING, .value = &(l).trusted_proxies, .placeholder = "NETWORK,...",        \
     .help = "proxies of the HTTP port and the gRPC port, such as 10.0.0.0/8: their X-Forwarded-For or Forwarded names "    \
             "the client that --max-connections-per-address counts; default: none"},                                       \
    {.name = "max-message-mb", .type = OPTION_INT, .value = &(l).max_message_mb, .default_text = "64", .min = 1,       \
     .max = 1024, .unit = "MiB", .help = "largest message of a client; messages that are still being received "          \
                                         "take at most four times this together (at least 256 MiB)"},                  \
    {.name = "max-answers-mb", .type = OPTION_INT, .value = &(l).max_answers_mb, .default_text = "256", .min = 1,      \
     .max = 65536, .unit = "MiB", .help = "memory of all whole (not streamed) answers, over HTTP and KServe, and of "   \
                                          "prompts that echo will repeat; beyond it, an answer with more than an equal " \
                                          "share ends with status 429 or RESOURCE_EXHAUSTED"},                           \
    {.name = "max-keyless-mb", .type = OPTION_INT, .value = &(l).max_keyless_mb, .default_text = "64", .min = 1,       \
     .max = 65536, .unit = "MiB", .help = "memory held for connections that have not shown the API key or cluster "     \
                                          "token that the router requires; beyond it, the busiest is closed"},         \
    {.name = "max-peers-mb", .type = OPTION_INT, .value = &(l).max_peers_mb, .default_text = "0", .max = 1048576,      \
     .unit = "MiB", .help = "memory held for all other connections: calls, headers, and messages that are being "       \
                            "received; beyond it, the busiest is closed. 0: eight times --max-message-mb"},            \
    {.name = "-Security"},                                                                                             \
    {.name = "tls-cert", .type = OPTION_STRING, .value = &(l).tls_cert, .placeholder = "FILE",                         \
     .help = "serve clients with TLS; the router's certificate, followed by intermediate ones, in PEM. All TLS "       \
             "files are read again when they change"},                                                                 \
    {.name = "tls-key", .type = OPTION_STRING, .value = &(l).tls_key, .placeholder = "FILE",                           \
     .help = "private key of --tls-cert, in PEM"},                                                                     \
    {.name = "tls-client-ca", .type = OPTION_STRING, .value = &(l).tls_client_ca, .placeholder = "FILE",               \
     .help = "serve only clients with a certificate of these authorities, in PEM"},                                    \
    {.name = "node-tls-cert", .type = OPTION_STRING, .value = &(l).node_tls_cert, .placeholder = "FILE",               \
     .help = "serve nodes with TLS; the router's certificate for them, in PEM"},                                       \
    {.name = "node-tls-key", .type = OPTION_STRING, .value = &(l).node_tls_key, .placeholder = "FILE",                 \
     .help = "private key of --node-tls-cert, in PEM"},                                                                \
    {.name = "node-tls-ca", .type = OPTION_STRING, .value = &(l).node_tls_ca, .placeholder = "FILE",                   \
     .help = "accept only nodes with a certificate of these authorities, in PEM"},                                     \
    {.name = "cluster-token-file", .type = OPTION_STRING, .value = &(l).cluster_token_file, .placeholder = "FILE",     \
     .help = "accept only nodes that show the cluster token in this file; read again when it changes"},                \
    {.name = "allowed-hosts", .type = OPTION_STRING, .value = &(l).allowed_hosts, .placeholder = "NAME,...",               \
     .help = "host names, in addition to addresses, localhost and --host, for which the HTTP port answers. Default: only " \
             "these on a loopback port without --api-keys, every name on other ports"},                                    \
    {.name = "cors-origin", .type = OPTION_STRING, .value = &(l).cors_origin, .placeholder = "ORIGIN,...",                 \
     .help = "web pages of other origins that may use the HTTP API, such as https://chat.example.org; *: every page; "     \
             "default: none"},                                                                                             \
    {.name = "insecure", .type = OPTION_BOOL, .value = &(l).insecure,                                                  \
     .help = "allow ports beyond loopback without TLS, and nodes without certificate and cluster token"}
#define BATCH_OPTION_ROWS(b)                                                                                           \
    {.name = "-Batches"},                                                                                              \
    {.name = "batch-dir", .type = OPTION_STRING, .value = &(b).dir, .placeholder = "DIR",                              \
     .help = "folder for the files of POST /v1/files and the batches of POST /v1/batches, which continue after a "     \
             "restart; it is created if needed, and one router uses it. Default: no files and batches"},               \
    {.name = "batch-window", .type = OPTION_INT, .value = &(b).window, .default_text = "1024", .min = 1, .max = 100000,  \
     .unit = "requests", .help = "requests of batches in flight, all batches together"},                               \
    {.name = "batch-file-mb", .type = OPTION_INT, .value = &(b).file_mb, .default_text = "512", .min = 1,              \
     .max = 1048576, .unit = "MiB", .help = "largest file of POST /v1/files; the input of a batch has at most 200 "    \
                                            "MiB and 50000 requests"},                                                 \
    {.name = "batch-tenant-mb", .type = OPTION_INT, .value = &(b).tenant_mb, .default_text = "10240", .min = 1,        \
     .max = 1e9, .unit = "MiB", .help = "files and results of one tenant; beyond it uploads get status 507, and a "    \
                                        "batch fails with its answers so far"},                                       \
    {.name = "batch-total-mb", .type = OPTION_INT, .value = &(b).total_mb, .default_text = "102400", .min = 1,         \
     .max = 1e9, .unit = "MiB", .help = "files and results of all tenants"},                                           \
    {.name = "batch-tenant-files", .type = OPTION_INT, .value = &(b).tenant_files, .default_text = "1000", .min = 1,   \
     .max = 100000, .unit = "files", .help = "files of one tenant"},                                                   \
    {.name = "batch-total-files", .type = OPTION_INT, .value = &(b).total_files, .default_text = "10000", .min = 1,    \
     .max = 100000, .unit = "files", .help = "files of all tenants"}
// clang-format on

// Checks the rule of exposure and conflicts between options. Returns STATUS_INVALID with an error message.
enum status listen_check(const struct listen_options *options);
// Checks that the TLS files, the cluster token file and the folder of batches can be used, without opening a port.
enum status listen_check_files(const struct listen_options *options);

struct listeners { // must not move while they are open
    struct rpc_server *clients, *nodes;
    struct http_service *http; // NULL: no HTTP API. Free it with http_service_free() after loop_stop()
    struct rpc_method node_methods[3];
    char *hosts; // owned; names that Host may have, for `http`
    struct certificate_time certificates[4];
};

// `methods` of clients are borrowed until listeners_close(). Sets front->cluster_token.
enum status listeners_open(const struct listen_options *options, struct front *front, const struct rpc_method *methods,
                           struct listeners *listeners);
// Reads the TLS files and the cluster token file again if they have changed. Returns the last failure.
enum status listeners_reload(const struct listeners *listeners, const struct front *front);
void listeners_close(struct listeners *listeners, int grace_ms); // first the clients' listeners, then the nodes'
