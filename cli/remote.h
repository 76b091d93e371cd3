// SPDX-License-Identifier: Apache-2.0
// Calls to a router that more than one command makes. Blocking; rpc_init() must have run.
#pragma once

#include "cli/answer.h"
#include "cli/request.h"

// New text of an answer, as it comes.
typedef void (*text_fn)(void *user, const char *text, size_t size_bytes);

// One Generate call. `on_text` may be NULL; `*id_p`, when id_p is not NULL, becomes the request's id (caller frees).
enum status remote_generate(const char *server, int64_t timeout_ms, const struct request_spec *spec, text_fn on_text,
                            void *user, struct answer *answer, char **id_p);

// One unary call: packs `request`, unpacks the answer with `descriptor`. The caller frees *answer_p with
// protobuf_c_message_free_unpacked.
enum status remote_call(const char *server, const char *method, const ProtobufCMessage *request,
                        const ProtobufCMessageDescriptor *descriptor, ProtobufCMessage **answer_p);
