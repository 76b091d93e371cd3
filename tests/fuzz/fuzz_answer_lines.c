// SPDX-License-Identifier: Apache-2.0
// The output of an earlier run of `forepack batch`: any bytes. The copy has one answer in each line, and copying it
// again gives the same text.
#include <jansson.h>

#include "cli/answer_lines.h"
#include "tests/fuzz/fuzz.h"

struct copied {
    char *text;
    size_t n;
    int answers;
};

static bool copy_all(void *arg, const char *id)
{
    ((struct copied *)arg)->answers++;
    return true;
}

static enum status copy(const void *bytes, size_t n, struct copied *to)
{
    *to = (struct copied){0};
    FILE *in = fmemopen((void *)bytes, n, "r"), *out = open_memstream(&to->text, &to->n);
    FUZZ_CHECK(in && out);
    enum status status = answer_lines_copy("fuzz", in, out, copy_all, to);
    fclose(in);
    fclose(out);
    return status;
}

static int count_lines(const struct copied *c)
{
    int lines = 0;
    for (size_t i = 0; i < c->n; i++)
        lines += c->text[i] == '\n';
    return lines;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct copied once, again;
    if (!size) return 0;
    enum status status = copy(data, size, &once);
    FUZZ_CHECK(count_lines(&once) == once.answers);
    if (status == STATUS_OK && once.n) {
        FUZZ_CHECK(copy(once.text, once.n, &again) == STATUS_OK);
        FUZZ_CHECK(again.n == once.n && memcmp(again.text, once.text, once.n) == 0);
        free(again.text);
    }
    FUZZ_CHECK(status == STATUS_OK || *status_message());
    free(once.text);
    return 0;
}
