// SPDX-License-Identifier: Apache-2.0
// Decodes bodies with Content-Encoding: gzip (RFC 1952), in pieces of a bounded size. One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_GUNZIP_BYTES = 48 << 10 }; // memory of a decoder

struct http_gunzip;

struct http_gunzip *http_gunzip_open(void);
void http_gunzip_free(struct http_gunzip *g); // NULL is allowed

// Decodes bytes[0, size) to out[room]. Writes the bytes used to *used_p and the bytes written to *n_p. Returns false if
// the bytes are not gzip. Uses all bytes unless `out` gets full. A member ends with a checksum, so its last output
// comes before its last bytes are used.
bool http_gunzip_run(struct http_gunzip *g, const char *bytes, size_t size, size_t *used_p, char *out, size_t room,
                     size_t *n_p);
// Returns true if the body may end here: its last member is whole.
bool http_gunzip_is_whole(const struct http_gunzip *g);
