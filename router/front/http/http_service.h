// SPDX-License-Identifier: Apache-2.0
// The HTTP API of the router: its routes and their server. Errors are OpenAI's error object, or
// Anthropic's below /v1/messages. Every answer has the header x-request-id.
//
//   http_service.c      routes, and pings of silent streams
//   http_call.c         ids, authorisation and errors of every exchange
//   http_intake.c       passes bodies to their readers, directly or through the pool
//   json_body.c         reads the fields of a JSON body with tables
//   json_generation.c   converts the fields of a generation to a GenerateRequest
//   tokenizer_info.c    reads the answer of /tokenizer_info from the model's files
//   json_images.c       replaces images by a text
//   json_unknown.c      logs the names of unknown fields
//   json_variables.c    variables of the chat template that fields stand for
//   json_writer.c       writes JSON text
//   http_input.c        holds the fields and prompts of a body
//   http_generation.c   a generation of any API: start, tokens, end
//   http_generation_reader.c, http_generation_collector.c, http_generation_streamer.c
//                       requests, whole answer and server-sent events of a generation
//   http_sections.c     splits answers into reasoning, content and tool calls
//   http_usage.c        writes usage and headers of an answer
//   http_prompt.c       reads prompts that are text or token ids
//   http_messages.c     reads prompts that are messages
//   http_tools.c        reads tools and the choice among them
//   http_count.c        counts the tokens of a prompt
//   http_openai.c       parts of answers that http_chat.c and http_completions.c share
//   http_chat.c         /v1/chat/completions
//   http_completions.c  /v1/completions
//   http_responses.c    /v1/responses, with the files that json_responses.h lists
//   http_anthropic.c    /v1/messages, with json_anthropic.c and json_anthropic_answer.c
//   json_translate.c    functions that the last two APIs share
//   http_info.c         models, tokenize, detokenize, tokenizer_info, health, ready, version
//   http_score.c        /v1/score
//   http_metrics.c      /metrics
//   http_batching.c     opens the folder of files and batches; runs the requests of batches
//   http_files.c        /v1/files, with http_upload.c and http_download.c
//   http_batches.c      /v1/batches
//   live_pages.c        the live page at / and its events
//   live_snapshot.c     writes the content of these events
#pragma once

#include <pthread.h>

#include "router/front/http/http_batching.h"
#include "router/front/http/http_generation.h"

struct http_service {
    struct front *front;
    struct http_server *server;
    struct http_streams streams; // core's thread only
    struct metrics_reporter *reporter;
    struct live_pages *live;
    struct http_batching *batching; // NULL: no --batch-dir
    int64_t started_s;              // Unix time
    struct http_route *routes;      // owned
    pthread_t pinger;
    pthread_mutex_t lock; // guards `closing`
    pthread_cond_t wake;
    bool closing;
    int64_t ping_every_us;
};

struct http_service_options {
    const char *host;
    int port;                         // 0: a free port
    const struct http_tls_files *tls; // NULL: plain
    int max_connections_per_address;  // 0: no bound
    const char *trusted_proxies;      // as in http_server_options; NULL: none
    struct http_site site;
    bool proof; // as in http_server_options: clients must show a key
    size_t max_body_bytes;
    size_t max_bodies_bytes; // see struct http_server_options; 0: its default
    int64_t ping_ms;         // a stream is pinged after this time without an event, or up to a third later; 0: 15000
    // As in http_server_options; 0: its default.
    int64_t stall_ms, max_connection_age_ms;
    size_t max_unread_bytes, max_all_unread_bytes;
    struct http_batching_options batching;
};

// Opens the service, which serves until it is closed. Returns UNAVAILABLE or INVALID if it cannot listen;
// status_message() names the port.
enum status http_service_open(struct front *front, const struct http_service_options *options,
                              struct http_service **service_p);
enum status http_service_reload(struct http_service *service); // see http_server_reload(); NULL is allowed
void http_service_drain(struct http_service *service);         // stops the batches; NULL is allowed
int http_service_port(const struct http_service *service);     // -1 for NULL
// Waits up to grace_ms for running exchanges, then disconnects. Their last events are posted to the core's thread. So
// close the service before loop_stop(), and free it after loop_stop(). Both functions allow NULL.
void http_service_close(struct http_service *service, int grace_ms);
void http_service_free(struct http_service *service);
