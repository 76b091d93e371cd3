// SPDX-License-Identifier: Apache-2.0
#include "lib/http/gunzip.h"

#include <stdlib.h>
#include <zlib.h>

#include "lib/base/invariant.h"
#include "lib/base/mem.h"

enum { GZIP_WINDOW_BITS = 16 + MAX_WBITS }; // 16 asks zlib for gzip's header and checksum

struct http_gunzip {
    z_stream z;
    bool whole; // the last byte used ended a member
};

struct http_gunzip *http_gunzip_open(void)
{
    struct http_gunzip *g = mem_alloc(sizeof *g);
    int result = inflateInit2(&g->z, GZIP_WINDOW_BITS);
    INVARIANT(result == Z_OK, "inflateInit2: %d", result);
    return g;
}

void http_gunzip_free(struct http_gunzip *g)
{
    if (g) inflateEnd(&g->z);
    free(g);
}

bool http_gunzip_run(struct http_gunzip *g, const char *bytes, size_t size, size_t *used_p, char *out, size_t room,
                     size_t *n_p)
{
    g->z.next_in = (z_const Bytef *)bytes;
    g->z.avail_in = (uInt)size;
    g->z.next_out = (Bytef *)out;
    g->z.avail_out = (uInt)room;
    if (g->whole) inflateReset(&g->z); // a body may have several members
    int result = inflate(&g->z, Z_NO_FLUSH);
    *used_p = size - g->z.avail_in;
    *n_p = room - g->z.avail_out;
    g->whole = result == Z_STREAM_END;
    return result == Z_OK || result == Z_STREAM_END;
}

bool http_gunzip_is_whole(const struct http_gunzip *g)
{
    return g->whole;
}
