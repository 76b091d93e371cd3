// SPDX-License-Identifier: Apache-2.0
#include "engine/join_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static enum status hmac(const void *key, size_t key_bytes, struct join_bytes text, uint8_t mac_p[JOIN_MAC_BYTES])
{
    unsigned int n = 0;
    const bool done = HMAC(EVP_sha256(), key, (int)key_bytes, text.bytes, text.n, mac_p, &n) && n == JOIN_MAC_BYTES;
    return done ? STATUS_OK : status_fail(STATUS_INTERNAL, "OpenSSL cannot compute an HMAC with SHA-256");
}

static enum status labelled(const uint8_t key[JOIN_MAC_BYTES], const char *label, uint8_t mac_p[JOIN_MAC_BYTES])
{
    return hmac(key, JOIN_MAC_BYTES, (struct join_bytes){(const uint8_t *)label, strlen(label)}, mac_p);
}

static uint8_t *part_write(uint8_t *at, struct join_bytes part)
{
    *at++ = (uint8_t)(part.n >> 8);
    *at++ = (uint8_t)part.n;
    memcpy(at, part.bytes, part.n);
    return at + part.n;
}

enum status join_keys_derive(const char *token, struct join_bytes follower_hello, struct join_bytes leader_hello,
                             const uint8_t session[JOIN_MAC_BYTES], struct join_keys *keys_p)
{
    uint8_t transcript[2 * (2 + JOIN_GREETING_MAX) + JOIN_MAC_BYTES], key[JOIN_MAC_BYTES];
    uint8_t *at = part_write(transcript, follower_hello);
    at = part_write(at, leader_hello);
    memcpy(at, session, JOIN_MAC_BYTES);
    at += JOIN_MAC_BYTES;
    enum status status = hmac(token, strlen(token), (struct join_bytes){transcript, (size_t)(at - transcript)}, key);
    if (status == STATUS_OK) status = labelled(key, "forepack join follower proof", keys_p->follower_proof);
    if (status == STATUS_OK) status = labelled(key, "forepack join leader proof", keys_p->leader_proof);
    if (status == STATUS_OK) status = labelled(key, "forepack join follower frames", keys_p->follower_frames);
    if (status == STATUS_OK) status = labelled(key, "forepack join leader frames", keys_p->leader_frames);
    explicit_bzero(key, sizeof key);
    return status;
}

enum status join_frame_mac(const uint8_t key[JOIN_MAC_BYTES], uint64_t number, enum join_type type,
                           struct join_bytes payload, uint8_t mac_p[JOIN_MAC_BYTES])
{
    uint8_t *text = mem_alloc(9 + payload.n);
    for (int i = 0; i < 8; i++)
        text[i] = (uint8_t)(number >> (56 - 8 * i));
    text[8] = (uint8_t)type;
    if (payload.n) memcpy(text + 9, payload.bytes, payload.n);
    enum status status = hmac(key, JOIN_MAC_BYTES, (struct join_bytes){text, 9 + payload.n}, mac_p);
    free(text);
    return status;
}

bool join_mac_equal(const uint8_t a[JOIN_MAC_BYTES], const uint8_t b[JOIN_MAC_BYTES])
{
    return CRYPTO_memcmp(a, b, JOIN_MAC_BYTES) == 0;
}
