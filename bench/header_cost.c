// SPDX-License-Identifier: Apache-2.0
#include "bench/header_cost.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/http2.h"
#include "lib/base/invariant.h"
#include "lib/base/mem.h"
#include "lib/http/parse.h"
#include "lib/net/header_size.h"

enum { RUNS = 10, RUN_BYTES = 4 << 20, LONG_BYTES = 8000, H2_HEADERS_MAX = 120, BLOCK_BYTES = 16384 };

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

// --- headers, whose sizes near the limits of the router

static void raw_long(struct h2_bytes *to)
{
    char *value = mem_alloc(LONG_BYTES);
    memset(value, 'a', LONG_BYTES);
    h2_add_header(to, "x", value, LONG_BYTES);
    free(value);
}

static void raw_short(struct h2_bytes *to)
{
    for (int i = 0; i < H2_HEADERS_MAX; i++)
        h2_add_header(to, "x", "a", 1);
}

static void huffman(struct h2_bytes *to)
{
    enum { PIECES = LONG_BYTES / 8, REST = 5 * PIECES - 127 };
    h2_add(to, "\0\1x", 3);
    h2_add(to, (const uint8_t[]){0xff, (REST & 127) | 128, REST >> 7}, 3); // the encoded size, in 7 + 7 + 7 bits
    for (int i = 0; i < PIECES; i++)
        h2_add(to, "\x18\xc6\x31\x8c\x63", 5); // eight times the letter a
}

static void indexed(struct h2_bytes *to)
{
    for (int i = 0; i < H2_HEADERS_MAX; i++)
        h2_add(to, "\x83", 1);
}

static void head_of(struct h2_bytes *to, int fields, size_t value_bytes)
{
    static const char start[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
    h2_add(to, start, sizeof start - 1);
    for (int i = 0; i < fields; i++) {
        h2_add(to, "X: ", 3);
        for (size_t n = 0; n < value_bytes; n++)
            h2_add(to, "a", 1);
        h2_add(to, "\r\n", 2);
    }
    h2_add(to, "\r\n", 2);
}

static void head_long(struct h2_bytes *to)
{
    head_of(to, 1, LONG_BYTES);
}

static void head_short(struct h2_bytes *to)
{
    head_of(to, HTTP_FIELDS_MAX - 1, 1);
}

// --- measuring

static void parse_h2(const struct h2_bytes *b)
{
    static struct header_counter counter;
    if (!counter.max_bytes) header_counter_init(&counter, BLOCK_BYTES, H2_HEADERS_MAX);
    header_block_start(&counter);
    bool sound = header_block_add(&counter, b->data, b->size) == HEADER_OK && header_block_end(&counter) == HEADER_OK;
    INVARIANT(sound, "a header block of %zu bytes breaks a limit", b->size);
}

static void parse_http(const struct h2_bytes *b)
{
    static char texts[HTTP_TEXT_ROOM(BLOCK_BYTES)];
    struct http_scan scan = {0};
    struct http_head head;
    const char *sentence = "it has no end", *bytes = (const char *)b->data;
    bool sound = http_scan_head(&scan, bytes, b->size) == HTTP_PARSE_DONE &&
                 http_parse_head(bytes, b->size, texts, &head, &sentence) == 0;
    INVARIANT(sound, "a head of %zu bytes is refused: %s", b->size, sentence);
}

static const struct form {
    const char *protocol, *name;
    void (*make)(struct h2_bytes *to);
    void (*parse)(const struct h2_bytes *bytes);
} forms[HEADER_COSTS] = {
    {"HTTP/2", "raw, one long", raw_long, parse_h2},
    {"HTTP/2", "raw, short", raw_short, parse_h2},
    {"HTTP/2", "Huffman", huffman, parse_h2},
    {"HTTP/2", "indexed", indexed, parse_h2},
    {"HTTP/1.1", "one long field", head_long, parse_http},
    {"HTTP/1.1", "short fields", head_short, parse_http},
};

static double form_measure(const struct form *form)
{
    struct h2_bytes bytes = {0};
    double least = 0;
    form->make(&bytes);
    const size_t n = RUN_BYTES / bytes.size;
    for (int run = 0; run < RUNS; run++) {
        double start = cpu_ns();
        for (size_t i = 0; i < n; i++)
            form->parse(&bytes);
        double ns = (cpu_ns() - start) / (double)(n * bytes.size);
        if (run == 0 || ns < least) least = ns;
    }
    free(bytes.data);
    return least;
}

void header_costs_measure(struct header_cost costs[HEADER_COSTS])
{
    for (int i = 0; i < HEADER_COSTS; i++)
        costs[i] = (struct header_cost){forms[i].protocol, forms[i].name, form_measure(&forms[i])};
}
