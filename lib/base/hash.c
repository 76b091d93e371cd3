// SPDX-License-Identifier: Apache-2.0
#include "lib/base/hash.h"

#include <string.h>

struct sip {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(struct sip *s)
{
    s->v0 += s->v1;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v2 = rotate(s->v2, 32);
}

static inline void sip_absorb(struct sip *s, uint64_t word)
{
    s->v3 ^= word;
    sip_round(s);
    sip_round(s);
    s->v0 ^= word;
}

uint64_t hash_bytes(const struct hash_key *key, const void *data, size_t n_bytes)
{
    struct sip s = {key->k0 ^ UINT64_C(0x736f6d6570736575), key->k1 ^ UINT64_C(0x646f72616e646f6d),
                    key->k0 ^ UINT64_C(0x6c7967656e657261), key->k1 ^ UINT64_C(0x7465646279746573)};
    const unsigned char *at = data;
    uint64_t word, last = (uint64_t)n_bytes << 56;
    for (size_t left = n_bytes / sizeof word; left; left--, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        sip_absorb(&s, word);
    }
    for (size_t i = 0; i < n_bytes % sizeof word; i++)
        last |= (uint64_t)at[i] << 8 * i;
    sip_absorb(&s, last);
    s.v2 ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

uint64_t hash_text(const struct hash_key *key, const char *text)
{
    return hash_bytes(key, text, strlen(text));
}

uint64_t hash_number(const struct hash_key *key, uint64_t number)
{
    return hash_bytes(key, &number, sizeof number);
}
