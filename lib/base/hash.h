// SPDX-License-Identifier: Apache-2.0
// The hash for tables and prefixes whose keys clients choose: SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012). A
// client does not know the key, so it cannot compute texts or prompts that collide. Thread-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct hash_key {
    uint64_t k0, k1;
};

struct hash_key hash_key_random(void); // from the system's generator; never all zeros

uint64_t hash_bytes(const struct hash_key *key, const void *data, size_t n_bytes);
uint64_t hash_text(const struct hash_key *key, const char *text);
uint64_t hash_number(const struct hash_key *key, uint64_t number);
