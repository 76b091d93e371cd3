// SPDX-License-Identifier: Apache-2.0
// Makes the commands' calls to a router. The functions block; call rpc_init() first. One thread.
#pragma once

#include <stdbool.h>

#include "cli/answer.h"
#include "cli/request.h"
#include "lib/net/rpc.h"

enum { REMOTE_CALL_TIMEOUT_MS = 120000, REMOTE_RESUME_S = 30 };

// The routers and how to connect to them. The strings belong to the option table with REMOTE_OPTION_ROWS, and live
// until options_free().
struct remote {
    char *server;                      // HOST:PORT, or several of them with commas between them
    int turn;                          // number of servers that were given up: the next one of the list is in use
    char *tls_ca, *tls_cert, *tls_key; // PEM; tls_ca NULL: plain text
    char *api_key_file;                // NULL: no key is sent
    int64_t call_timeout_ms;           // time limit of a unary call; 0: REMOTE_CALL_TIMEOUT_MS
};

// clang-format off
#define REMOTE_OPTION_ROWS(r)                                                                                          \
    {.name = "server", .type = OPTION_STRING, .value = &(r).server, .default_text = "127.0.0.1:50051",                 \
     .placeholder = "HOST:PORT,...",                                                                                   \
     .help = "addresses of routers; the next one is used when one is lost"},                                           \
    {.name = "tls-ca", .type = OPTION_STRING, .value = &(r).tls_ca, .placeholder = "FILE",                             \
     .help = "connect with TLS; authorities, in PEM, that may have signed the router's certificate"},                  \
    {.name = "tls-cert", .type = OPTION_STRING, .value = &(r).tls_cert, .placeholder = "FILE",                         \
     .help = "certificate of this client, in PEM, for a router with --tls-client-ca"},                                 \
    {.name = "tls-key", .type = OPTION_STRING, .value = &(r).tls_key, .placeholder = "FILE",                           \
     .help = "private key of --tls-cert, in PEM"},                                                                     \
    {.name = "api-key-file", .type = OPTION_STRING, .value = &(r).api_key_file, .placeholder = "FILE",                 \
     .help = "file with the API key that is sent to the router"}
// clang-format on

int remote_servers(const struct remote *remote);            // number of servers in the list
bool remote_is_lost(enum status status);                    // true: the router was lost, and another one may answer
void remote_pause(const struct remote *remote, int losses); // waits before a new attempt, after losses in a row

// Opens a channel to the server in use.
enum status remote_open(const struct remote *remote, struct rpc_channel **channel_p);

// Receives each new piece of text of an answer.
typedef void (*text_fn)(void *user, const char *text, size_t size_bytes);

// Makes a Generate call. If the router is lost, the answer continues at the next server, or at the same one if the list
// has no other. Gives up if no token comes for REMOTE_RESUME_S, or if no server has begun the answer. `answer` must be
// initialised. `on_text` may be NULL. If id_p is not NULL, *id_p must be NULL, and is set to the id of the request; the
// caller frees it. Changes the resume fields and the missing id of `spec` while it runs.
enum status remote_generate(struct remote *remote, int64_t timeout_ms, struct request_spec *spec, text_fn on_text,
                            void *user, struct answer *answer, char **id_p);

// Makes one unary call: packs `request` and unpacks the answer with `descriptor`. Tries each server once, until one is
// not UNAVAILABLE, so the call must be one that may run twice. The caller frees *answer_p with
// protobuf_c_message_free_unpacked().
enum status remote_call(const struct remote *remote, const char *method, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **answer_p);
// Makes a unary call over a channel of remote_open(), which can be used for several calls.
enum status remote_call_on(struct rpc_channel *channel, const struct remote *remote, const char *method,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *descriptor,
                           ProtobufCMessage **answer_p);
