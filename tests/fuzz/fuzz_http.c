// SPDX-License-Identifier: Apache-2.0
// The parser of HTTP requests: heads and chunked bodies. The first byte gives the size of the pieces in which the
// remaining bytes arrive. The parsers must reach the same result as with one piece, and read the same from valid input.
#include "lib/http/parse.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

struct scan_result {
    enum http_parse found;
    size_t at;
};

static struct scan_result scan_in_pieces(const char *bytes, size_t size, size_t piece)
{
    struct http_scan scan = {0};
    struct scan_result r = {HTTP_PARSE_MORE, 0};
    for (size_t to = piece; r.found == HTTP_PARSE_MORE; to += piece) {
        r.found = http_scan_head(&scan, bytes, to < size ? to : size);
        r.at = scan.at;
        if (to >= size) break;
    }
    return r;
}

// Checks that the pairs end inside the texts.
static void walk_pairs(const char *texts, size_t at, size_t size)
{
    while (texts[at]) {
        for (int i = 0; i < 2; i++) {
            at += strlen(texts + at) + 1;
            FUZZ_CHECK(at < size);
        }
    }
}

static void parse_head(const char *bytes, size_t size)
{
    char *texts = malloc(HTTP_TEXT_ROOM(size));
    struct http_head head;
    const char *sentence = NULL;
    int status = http_parse_head(bytes, size, texts, &head, &sentence);
    FUZZ_CHECK(head.text_size <= HTTP_TEXT_ROOM(size));
    FUZZ_CHECK((status != 0) == (sentence != NULL));
    if (status == 0) {
        FUZZ_CHECK(!(head.chunked && head.has_length));
        FUZZ_CHECK(texts[head.path] == '/' || strcmp(texts + head.path, "*") == 0 || texts[head.path] == '?');
        walk_pairs(texts, head.fields, head.text_size);
        FUZZ_CHECK(http_pair(texts + head.fields, "host") || head.http_1_0);
    }
    free(texts);
}

struct chunk_result {
    enum http_parse result;
    size_t at, body;
    uint64_t hash;
};

static struct chunk_result read_in_pieces(const char *bytes, size_t size, size_t piece)
{
    struct http_chunks chunks = {0};
    struct chunk_result r = {.result = HTTP_PARSE_MORE, .hash = 14695981039346656037u};
    for (size_t to = piece; r.result == HTTP_PARSE_MORE; to += piece) {
        size_t end = to < size ? to : size;
        while (r.at < end && r.result == HTTP_PARSE_MORE) {
            const char *data;
            size_t n, before = r.at;
            r.result = http_read_chunks(&chunks, bytes, end, &r.at, &data, &n);
            FUZZ_CHECK(r.at > before && r.at <= end && n <= r.at - before);
            for (size_t i = 0; i < n; i++)
                r.hash = (r.hash ^ (uint8_t)data[i]) * 1099511628211u;
            r.body += n;
        }
        if (to >= size) break;
    }
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    size_t piece = data[0] % 16 + 1u;
    const char *bytes = (const char *)data + 1;
    size--;

    struct scan_result whole = scan_in_pieces(bytes, size, size + 1), parts = scan_in_pieces(bytes, size, piece);
    FUZZ_CHECK(whole.found == parts.found);
    if (whole.found == HTTP_PARSE_DONE) {
        FUZZ_CHECK(whole.at == parts.at && whole.at <= size);
        parse_head(bytes, whole.at);
        bytes += whole.at;
        size -= whole.at;
    }
    struct chunk_result body = read_in_pieces(bytes, size, size + 1), same = read_in_pieces(bytes, size, piece);
    FUZZ_CHECK(body.result == same.result);
    FUZZ_CHECK(body.result == HTTP_PARSE_BAD ||
               (body.at == same.at && body.hash == same.hash && body.body == same.body));
    return 0;
}
