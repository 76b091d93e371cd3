// SPDX-License-Identifier: Apache-2.0
// A byte with the size of the pieces, a Content-Type up to a NUL, then a body. In pieces of any size the body gives the
// same parts, or is refused. Parts do not overlap, hold no more bytes than the body, and the parser keeps few bytes.
#include "lib/http/multipart.h"
#include "tests/fuzz/fuzz.h"

struct seen {
    uint64_t hash; // of names and data
    size_t bytes;
    int parts;
    bool in_part;
};

static void add(struct seen *seen, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        seen->hash = (seen->hash ^ (unsigned char)bytes[i]) * 0x100000001b3;
}

static enum status part_begin(void *arg, const char *name, const char *filename)
{
    struct seen *seen = arg;
    FUZZ_CHECK(!seen->in_part && ++seen->parts <= MULTIPART_PARTS_MAX);
    FUZZ_CHECK(strlen(name) <= MULTIPART_NAME_BYTES);
    FUZZ_CHECK(!filename || strlen(filename) <= MULTIPART_FILENAME_BYTES);
    seen->in_part = true;
    add(seen, name, strlen(name) + 1);
    if (filename) add(seen, filename, strlen(filename) + 1);
    return STATUS_OK;
}

static enum status part_data(void *arg, const char *bytes, size_t size)
{
    struct seen *seen = arg;
    FUZZ_CHECK(seen->in_part && size > 0);
    seen->bytes += size;
    add(seen, bytes, size);
    return STATUS_OK;
}

static enum status part_end(void *arg)
{
    struct seen *seen = arg;
    FUZZ_CHECK(seen->in_part);
    seen->in_part = false;
    add(seen, "/", 1);
    return STATUS_OK;
}

static enum status parse(const char *type, const char *body, size_t size, size_t piece, struct seen *seen)
{
    static const struct multipart_ops ops = {part_begin, part_data, part_end};
    struct multipart m;
    *seen = (struct seen){.hash = 1};
    enum status status = multipart_init(&m, type);
    for (size_t at = 0; status == STATUS_OK && at < size; at += piece) {
        status = multipart_feed(&m, body + at, size - at < piece ? size - at : piece, &ops, seen);
        FUZZ_CHECK(http_buffer_size(&m.held) <= MULTIPART_HEADERS_BYTES + MULTIPART_BOUNDARY_BYTES + 16);
    }
    if (status == STATUS_OK) status = multipart_check_end(&m);
    multipart_fini(&m);
    FUZZ_CHECK(status == STATUS_OK || status == STATUS_INVALID);
    FUZZ_CHECK(seen->bytes <= size);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    size_t piece = 1 + (size_t)fuzz_byte(&script) % 40;
    struct fuzz_script text = fuzz_text(&script);
    char *type = strndup((const char *)text.at, text.left);
    struct seen whole, pieces;
    enum status status = parse(type, (const char *)script.at, script.left, script.left + 1, &whole);
    FUZZ_CHECK(parse(type, (const char *)script.at, script.left, piece, &pieces) == status);
    if (status == STATUS_OK) FUZZ_CHECK(whole.hash == pieces.hash && whole.parts == pieces.parts && !whole.in_part);
    free(type);
    return 0;
}
