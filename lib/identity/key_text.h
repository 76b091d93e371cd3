// SPDX-License-Identifier: Apache-2.0
// Parses and writes the words of a line of the key file: names, hashes, limits and times. Only for lib/identity. A
// failure sets status_message().
#pragma once

#include "lib/identity/key_file.h"

enum status key_hash_parse(const char *word, uint8_t hash[KEY_HASH_BYTES]);
unsigned key_field_bit(const char *name);        // a different bit for each name that api_key_set() accepts
char *api_key_format(const struct api_key *key); // returns the line without a line feed; the caller frees it

// Reads a whole open file, NUL-terminated. The caller owns *text_p [*size_p].
enum status key_fd_read(int fd, char **text_p, size_t *size_p);
