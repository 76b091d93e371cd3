// SPDX-License-Identifier: Apache-2.0
// The words of a line of the key file. For identity/ alone. Each failure has its sentence in status_message().
#pragma once

#include "lib/identity/key_file.h"

enum status key_hash_parse(const char *word, uint8_t hash[KEY_HASH_BYTES]);
unsigned key_field_bit(const char *name);        // another bit for each name that api_key_set() knows
char *api_key_format(const struct api_key *key); // the line, without a line feed; free() it

// All of an open file, NUL-terminated. *text_p [*size_p] is owned by the caller.
enum status key_fd_read(int fd, char **text_p, size_t *size_p);
