// SPDX-License-Identifier: Apache-2.0
// The file of API keys has one key per line. Empty lines and lines that start with # are skipped.
//
//   ID sha256:HASH TENANT [NAME=VALUE | operator | revoked]...
//
//   prod-1 sha256:9f86d0...0f00a08 acme priority=2 requests_per_minute=600 tokens_per_day=5000000 expires=2027-01-31
//
// A key has 256 random bits, so one SHA-256 of it is enough: finding a key from its hash takes 2^256 guesses. Passwords
// need slow and salted hashes because they can be guessed and are reused. Keys are random and not reused.
//
// Thread-safe. A process that edits the file needs key_file_lock().
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/prune_rule.h"
#include "lib/base/status.h"

enum {
    KEY_ID_BYTES = 64,      // longest id, without NUL
    KEY_TENANT_BYTES = 128, // longest name of a tenant
    KEY_HASH_BYTES = 32,
    KEY_FILE_KEYS_MAX = 100000,
    KEY_FILE_BYTES_MAX = 64 << 20,
    // Largest priority in a file; the smallest is its negative. Values beyond PRIORITY_MAX count as PRIORITY_MAX.
    KEY_PRIORITY_MAX = 1000,
};
#define KEY_PREFIX "fpk_"
// A key has 43 digits of base 62, which are 256 bits.
enum { KEY_DIGITS = 43, KEY_BYTES = sizeof KEY_PREFIX - 1 + KEY_DIGITS };

// Limits of a key. 0 means no limit.
struct key_limits {
    int64_t requests_per_minute, tokens_per_minute, tokens_per_day, concurrency;
};

struct api_key {
    char id[KEY_ID_BYTES + 1], tenant[KEY_TENANT_BYTES + 1]; // letters, digits, and . _ @ : -
    uint8_t hash[KEY_HASH_BYTES];
    struct key_limits limits;
    struct client_rules rules; // what its requests may do with pruning and drafts
    int64_t priority;          // highest priority that its requests may have
    int64_t expires_s;         // Unix time from which the key is refused; 0: never
    bool is_operator;          // may see nodes, queue and metrics, drain nodes and abort requests of other tenants
    bool revoked;              // the key is refused
};

struct key_file {
    struct api_key *keys; // [n] owned; ids and hashes are unique
    int n;
};
void key_file_fini(struct key_file *file);

// Parses the text of a file. Returns INVALID with the number of the line.
enum status key_file_parse(const char *text, size_t size, struct key_file *file_p);
// Reads a file. Returns INVALID or NOT_FOUND. Follows symbolic links, which mounted secrets need. The file must be a
// regular file that only its owner may write. *exposed_p is true if other users may read it.
enum status key_file_read(const char *path, struct key_file *file_p, bool *exposed_p);

// Sets id and tenant. Returns INVALID unless both are short enough and have only the characters that struct api_key
// allows.
enum status api_key_name(struct api_key *key, const char *id, const char *tenant);
// Sets one field of the key from its name and value in the file, such as "expires" and "2027-01-31". Returns INVALID
// with the reason.
enum status api_key_set(struct api_key *key, const char *name, const char *value);

// --- edits, for programs that change the file

// Opens the file for changes by this process alone, until key_file_unlock(). Waits for another process to finish. With
// `create`, creates a missing file, empty and readable only by its owner. Refuses a symbolic link.
enum status key_file_lock(const char *path, bool create, int *fd_p);
void key_file_unlock(int fd);

// Change one line: write a new file and rename it over the locked file. The other lines stay. EXISTS: the id or the
// hash is taken. NOT_FOUND: there is no such id.
enum status key_file_add(const char *path, int fd, const struct api_key *key);
enum status key_file_revoke(const char *path, int fd, const char *id);

// --- keys

// Makes a new random key, NUL-terminated, and its hash.
void key_generate(char key[KEY_BYTES + 1], uint8_t hash[KEY_HASH_BYTES]);
void key_hash(const char *key, size_t size, uint8_t hash[KEY_HASH_BYTES]);

// Parses "2027-01-31", "2027-01-31T12:00:00Z" or "2027-01-31T12:00:00+02:00" to Unix time. Returns INVALID for other
// texts.
enum status key_time_parse(const char *text, int64_t *seconds_p);
void key_time_format(int64_t seconds, char text[24]); // "2027-01-31T12:00:00Z"
