// SPDX-License-Identifier: Apache-2.0
// A pattern of tokenizer.json (up to a NUL), then a text. Matches come from left to right, inside the text, at borders
// of characters, and are the same the second time.
#include "lib/text/pattern.h"
#include "lib/text/unicode.h"
#include "tests/fuzz/fuzz.h"

struct walk_result {
    enum status status;
    size_t n, sum;
};

static bool at_border(const struct bytes *text, size_t at)
{
    return at == text->n || ((unsigned char)text->data[at] & 0xC0) != 0x80;
}

static struct walk_result walk(const struct pattern *pattern, const struct bytes *text)
{
    struct pattern_scratch *scratch = pattern_scratch_create(text->n);
    struct pattern_walk walk = pattern_walk_start(pattern, scratch, text->n ? text->data : "", text->n);
    struct walk_result r = {STATUS_OK, 0, 0};
    for (size_t last = 0;; r.n++) {
        size_t start, end;
        bool found;
        r.status = pattern_walk_next(&walk, &start, &end, &found);
        if (r.status != STATUS_OK || !found) break;
        FUZZ_CHECK(start >= last && start <= end && end <= text->n && r.n <= text->n);
        FUZZ_CHECK(at_border(text, start) && at_border(text, end));
        last = end;
        r.sum = 31 * r.sum + start + 7 * end;
    }
    pattern_scratch_free(scratch);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    char *source = fuzz_string(&script);
    struct pattern *pattern;
    if (pattern_open_regex(source, &pattern) == STATUS_OK) {
        struct bytes text = {0};
        utf8_repair(&text, (const char *)script.at, script.left, true);
        FUZZ_CHECK(strcmp(pattern_source(pattern), source) == 0);
        struct walk_result once = walk(pattern, &text), again = walk(pattern, &text);
        FUZZ_CHECK(once.status == again.status && once.n == again.n && once.sum == again.sum);
        FUZZ_CHECK(once.status == STATUS_OK || *status_message());
        bytes_free(&text);
        pattern_free(pattern);
    } else {
        FUZZ_CHECK(*status_message());
    }
    free(source);
    return 0;
}
