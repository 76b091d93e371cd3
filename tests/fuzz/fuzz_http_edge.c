// SPDX-License-Identifier: Apache-2.0
// The parts of the HTTP server that read what clients and proxies say about a request: gzip bodies, forwarded
// addresses, Host and Origin. The first byte chooses the part and the size of the pieces in which bytes arrive.
#include <stdio.h>
#include <string.h>

#include "lib/base/forwarded.h"
#include "lib/http/gunzip.h"
#include "lib/http/site.h"
#include "tests/fuzz/fuzz.h"

enum { DECODED_MAX = 1 << 20, OUT_BYTES = 512 };

struct decoded {
    bool sound, whole;
    size_t n;
    uint64_t hash;
};

static struct decoded decode(const char *bytes, size_t size, size_t piece)
{
    struct http_gunzip *g = http_gunzip_open();
    struct decoded d = {.sound = true, .hash = 14695981039346656037u};
    char out[OUT_BYTES];
    for (size_t at = 0; d.sound && d.n < DECODED_MAX && at < size;) {
        size_t left = size - at < piece ? size - at : piece, used, n;
        d.sound = http_gunzip_run(g, bytes + at, left, &used, out, sizeof out, &n);
        FUZZ_CHECK(used <= left && n <= sizeof out);
        FUZZ_CHECK(!d.sound || used || n); // it advances
        for (size_t i = 0; i < n; i++)
            d.hash = (d.hash ^ (uint8_t)out[i]) * 1099511628211u;
        d.n += n;
        at += used;
    }
    d.whole = http_gunzip_is_whole(g);
    http_gunzip_free(g);
    return d;
}

static void check_gzip(const char *bytes, size_t size, size_t piece)
{
    struct decoded whole = decode(bytes, size, size + 1), parts = decode(bytes, size, piece);
    if (whole.n >= DECODED_MAX || parts.n >= DECODED_MAX) return;
    // A fault near the end of an unfinished body may not be found before the body ends.
    bool accepted = whole.sound && whole.whole;
    FUZZ_CHECK(accepted == (parts.sound && parts.whole));
    FUZZ_CHECK(!accepted || (whole.n == parts.n && whole.hash == parts.hash));
}

static struct in6_addr client_of(const struct networks *trusted, const char *name, const char *value)
{
    const struct in6_addr peer = {.s6_addr[15] = 1};
    struct forwarded forwarded = forwarded_begin(trusted);
    forwarded_take(&forwarded, name, value);
    return forwarded_client(&forwarded, &peer);
}

// The text is a list of networks, and after a line break the value of a header.
static void check_forwarded(char *text, const char *name)
{
    struct networks trusted;
    struct in6_addr peer = {.s6_addr[15] = 1}, client;
    char *value = strchr(text, '\n'), longer[600] = "";
    if (!value) return;
    *value++ = '\0';
    if (networks_parse(text, &trusted) != STATUS_OK) trusted.n = 0;
    client_of(&trusted, name, value);
    // A proxy's own entry, which comes last, is believed unless it is trusted itself.
    snprintf(longer, sizeof longer, "%.500s%s", value, *name == 'x' ? ", 203.0.113.9" : ", for=203.0.113.9");
    struct in6_addr last = {.s6_addr = {[10] = 0xff, 0xff, 203, 0, 113, 9}};
    if (networks_have(&trusted, &last)) return;
    client = client_of(&trusted, name, longer);
    FUZZ_CHECK(memcmp(&client, &last, sizeof last) == 0 || (*name == 'f' && memcmp(&client, &peer, sizeof peer) == 0));
}

// The text is the option, and after line breaks Host and Origin.
static void check_site(char *text)
{
    char *host = strchr(text, '\n'), *origin = host ? strchr(host + 1, '\n') : NULL, texts[1200] = "POST";
    if (!origin || strlen(text) > 1000) return;
    *host++ = *origin++ = '\0';
    struct http_site site = {.check_host = true, .check_origin = true};
    if (http_hosts_check(text) == STATUS_OK) site.hosts = text;
    if (http_origins_check(text) == STATUS_OK) site.origins = text;
    struct http_head head = {.fields = 5};
    char *at = texts + 5;
    const char *const parts[] = {"host", host, "origin", origin};
    for (int i = 0; i < 4; i++, at += strlen(at) + 1)
        strcpy(at, parts[i]);
    const char *sentence = NULL;
    int status = http_site_check(&site, &head, texts, &sentence);
    FUZZ_CHECK(status == 0 ? sentence == NULL : (status == 421 || status == 403) && sentence);
    struct http_buffer lines = {0};
    http_site_add_headers(&site, &head, texts, &lines);
    http_site_preflight(&site, &head, texts, &lines);
    http_buffer_free(&lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1000) return 0;
    char text[1001];
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0] % 4) {
    case 0: check_gzip(text, size - 1, data[0] / 4 + 1u); break;
    case 1: check_forwarded(text, "x-forwarded-for"); break;
    case 2: check_forwarded(text, "forwarded"); break;
    default: check_site(text);
    }
    return 0;
}
