// SPDX-License-Identifier: Apache-2.0
#include "engine/join_peer.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/join_agent.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/version.h"

enum { PROOF_US = 10000000 };

struct join_peer *join_peer_create(int fd, SSL *ssl, const struct sockaddr_storage *address, socklen_t size)
{
    struct join_peer *peer = mem_alloc(sizeof *peer);
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    getnameinfo((const struct sockaddr *)address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(peer->address, sizeof peer->address, "%.50s:%.8s", host, port);
    join_link_open(&peer->link, fd, ssl);
    peer->deadline_us = clock_now_us() + PROOF_US;
    peer->agent = -1;
    return peer;
}

void join_peer_free(struct join_peer *peer)
{
    if (peer->agent >= 0) join_agent_answer(peer->agent, "the connection to the host is lost");
    join_link_close(&peer->link);
    free(peer);
}

const char *join_peer_host(const struct join_peer *peer)
{
    return *peer->hello.host ? peer->hello.host : peer->address;
}

static void refuse(struct join_peer *peer, const char *sentence)
{
    join_link_send(&peer->link, JOIN_REFUSED, (struct join_bytes){(const uint8_t *)sentence, strlen(sentence)});
}

static enum status greet(struct join_peer *peer, const struct join_frame *frame, const char *token_file)
{
    struct join_hello own = {.version = FOREPACK_VERSION};
    uint8_t payload[JOIN_GREETING_MAX];
    char host[HOST_NAME_MAX + 1] = "localhost", *token;
    TRY(join_hello_read(frame->payload, frame->n, &peer->hello));
    TRY(secret_file_read(token_file, &token));
    gethostname(host, sizeof host - 1);
    memcpy(own.host, host, strnlen(host, JOIN_TEXT_MAX));
    enum status status = getrandom(own.nonce, sizeof own.nonce, 0) == sizeof own.nonce
                             ? STATUS_OK
                             : status_fail(STATUS_INTERNAL, "getrandom: %s", strerror(errno));
    const struct join_bytes ours = {payload, join_hello_write(&own, payload)}, theirs = {frame->payload, frame->n};
    if (status == STATUS_OK) status = join_link_keys(&peer->link, token, theirs, ours, &peer->keys);
    explicit_bzero(token, strlen(token));
    free(token);
    if (status == STATUS_OK) status = join_link_send(&peer->link, JOIN_HELLO, ours);
    peer->greeted = true;
    return status;
}

static enum status check_proof(struct join_peer *peer, const struct join_frame *frame, bool full)
{
    if (frame->n != JOIN_MAC_BYTES || !join_mac_equal(frame->payload, peer->keys.follower_proof)) {
        refuse(peer, "its cluster token is not the leader's: give both the same --cluster-token-file");
        return status_fail(STATUS_UNAUTHENTICATED, "its cluster token is not this group's");
    }
    if (full) {
        refuse(peer, "the group has all of its hosts");
        return status_fail(STATUS_DENIED, "the group has all of its hosts");
    }
    TRY(join_link_send(&peer->link, JOIN_PROOF, (struct join_bytes){peer->keys.leader_proof, JOIN_MAC_BYTES}));
    if (strcmp(peer->hello.version, FOREPACK_VERSION) != 0)
        return status_fail(STATUS_DENIED, "host %s has version %s and this program %s: install the same version",
                           peer->hello.host, peer->hello.version, FOREPACK_VERSION);
    join_link_use_keys(&peer->link, peer->keys.leader_frames, peer->keys.follower_frames);
    return STATUS_OK;
}

static void answer_agent(struct join_peer *peer, const char *reason)
{
    if (peer->agent >= 0) join_agent_answer(peer->agent, reason);
    peer->agent = -1;
}

static void daemon_failed(struct join_peer *peer, const struct join_frame *frame)
{
    char *reason = mem_format("host %s: %.*s", peer->hello.host, (int)(frame->n < 900 ? frame->n : 900),
                              (const char *)frame->payload);
    log_event(LOG_ERROR, "daemon_not_started", LOG_FIELD("host", join_peer_host(peer)), LOG_FIELD("reason", reason));
    answer_agent(peer, reason);
    free(reason);
}

static enum status handle(struct join_peer *peer, const struct join_frame *frame, const char *token_file, bool full,
                          bool *proved_p)
{
    const bool proved = peer->link.has_keys;
    if (!proved && !peer->greeted && frame->type == JOIN_HELLO) return greet(peer, frame, token_file);
    if (!proved && peer->greeted && frame->type == JOIN_PROOF) {
        TRY(check_proof(peer, frame, full));
        *proved_p = true;
        return STATUS_OK;
    }
    if (proved && frame->type == JOIN_STARTED)
        answer_agent(peer, "");
    else if (proved && frame->type == JOIN_FAILED)
        daemon_failed(peer, frame);
    else if (proved && frame->type == JOIN_ENDED)
        peer->done = frame->n == 1 && frame->payload[0] == 0;
    else
        return status_fail(STATUS_INVALID, "it sends an unexpected message");
    return STATUS_OK;
}

enum status join_peer_attend(struct join_peer *peer, const char *token_file, bool full, bool *proved_p)
{
    enum status ended = join_link_read(&peer->link), status = STATUS_OK;
    char *reason = ended == STATUS_OK ? NULL : mem_string(status_message());
    struct join_frame frame;
    for (bool whole = true; status == STATUS_OK && whole;) {
        status = join_link_next(&peer->link, &frame, &whole);
        if (status == STATUS_OK && whole) status = handle(peer, &frame, token_file, full, proved_p);
    }
    if (status == STATUS_OK && ended != STATUS_OK) status = status_fail(ended, "%s", reason);
    free(reason);
    return status;
}

enum status join_peer_start(struct join_peer *peer, int agent, const uint8_t *words, size_t n)
{
    if (peer->agent >= 0) {
        join_agent_answer(agent, "the host is already starting a daemon");
        return STATUS_OK;
    }
    peer->agent = agent;
    return join_link_send(&peer->link, JOIN_START, (struct join_bytes){words, n});
}
