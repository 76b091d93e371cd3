// SPDX-License-Identifier: Apache-2.0
// Parses HTTP/1.1 requests (RFC 9112): heads and chunked bodies. Does no input or output and allocates nothing. Any
// thread.
//
// The parser is strict where two parsers could disagree about the end of a request (request smuggling): lines end in
// CRLF, nothing separates a field's name from its colon, fields are not folded, a length is given exactly once, and a
// host in the target equals Host.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum http_parse { HTTP_PARSE_MORE, HTTP_PARSE_DONE, HTTP_PARSE_BAD };

enum { HTTP_FIELDS_MAX = 100 };

// --- the end of a head

// State of the search for the end of a head. Zero it for every request.
struct http_scan {
    size_t at;   // bytes that were scanned
    size_t line; // where the line at `at` starts
};

// Looks for the empty line that ends the head. `bytes` has all bytes of the request so far; the first scan->at of them
// are unchanged since the last call. DONE: the head is bytes[0, scan->at). BAD: a line does not end in CRLF, or the
// bytes are no HTTP request.
enum http_parse http_scan_head(struct http_scan *scan, const char *bytes, size_t size);

// --- the head

// Texts are offsets into the array of texts that http_parse_head wrote; each text ends with a NUL.
struct http_head {
    size_t method;
    size_t path;      // decoded, without the query, and without a slash at its end
    size_t query;     // checked, but not decoded
    size_t fields;    // pairs of a name and a value; an empty name ends them
    size_t text_size; // size of all texts
    bool http_1_0;
    bool keep_alive;
    bool chunked;
    bool has_length;
    bool expect_continue;
    uint64_t content_length;
};

// Room that the texts of a head of `size` bytes may need. The NUL of each text replaces a separator.
#define HTTP_TEXT_ROOM(size) ((size) + 16)

// Parses a whole head, the final empty line included. `texts` has room for HTTP_TEXT_ROOM(size) bytes. Returns 0, or
// the HTTP status of a refusal (400, 417, 431, 501, 505), with the reason in *sentence_p.
int http_parse_head(const char *bytes, size_t size, char *texts, struct http_head *head, const char **sentence_p);

// Returns the value for `name`, in upper or lower case, in a list of pairs. NULL: there is none.
const char *http_pair(const char *pairs, const char *name);

// --- a chunked body

enum { HTTP_EXTENSIONS_MAX = 4096, HTTP_TRAILERS_MAX = 8192 }; // limits in bytes for one body

// State of reading a chunked body. Zero it for every body.
struct http_chunks {
    int state;
    int digits;
    uint64_t left;       // bytes of the chunk's data not yet read
    uint32_t extensions; // bytes so far, of all chunks
    uint32_t trailers;
};

// Reads bytes[*at_p, size) up to and including the next piece of data, and advances *at_p. MORE: data[0, *n_p) is the
// piece; *n_p 0 means that all bytes are read and there is no piece. DONE: the body ended at *at_p.
enum http_parse http_read_chunks(struct http_chunks *chunks, const char *bytes, size_t size, size_t *at_p,
                                 const char **data_p, size_t *n_p);
