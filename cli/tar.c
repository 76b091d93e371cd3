// SPDX-License-Identifier: Apache-2.0
#include "cli/tar.h"

#include <string.h>

enum { TAR_BLOCK_BYTES = 512, TAR_CHECKSUM_AT = 148, TAR_CHECKSUM_BYTES = 8 };

// Fields of a header, with the widths of POSIX.1-1988. Numbers are octal text.
struct tar_header {
    char name[TAR_NAME_BYTES], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[TAR_CHECKSUM_BYTES], type;
    char link[100], magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], padding[12];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK_BYTES, "a header is one block");

static unsigned checksum_of(const struct tar_header *header)
{
    const unsigned char *bytes = (const unsigned char *)header;
    unsigned sum = 0;
    for (int i = 0; i < TAR_BLOCK_BYTES; i++) // the checksum itself counts as blanks
        sum += i >= TAR_CHECKSUM_AT && i < TAR_CHECKSUM_AT + TAR_CHECKSUM_BYTES ? ' ' : bytes[i];
    return sum;
}

void tar_add(FILE *out, const char *name, const void *data, size_t size, int64_t time_s)
{
    static const char zeros[TAR_BLOCK_BYTES];
    struct tar_header header = {.type = '0', .magic = "ustar", .version = {'0', '0'}, .user = "root", .group = "root"};
    memcpy(header.name, name, strnlen(name, TAR_NAME_BYTES));
    snprintf(header.mode, sizeof header.mode, "%07o", 0600);
    snprintf(header.uid, sizeof header.uid, "%07o", 0);
    snprintf(header.gid, sizeof header.gid, "%07o", 0);
    snprintf(header.size, sizeof header.size, "%011llo", (unsigned long long)size);
    snprintf(header.mtime, sizeof header.mtime, "%011llo", (unsigned long long)time_s);
    snprintf(header.checksum, sizeof header.checksum, "%06o", checksum_of(&header));
    fwrite(&header, sizeof header, 1, out);
    fwrite(data, 1, size, out);
    fwrite(zeros, 1, (TAR_BLOCK_BYTES - size % TAR_BLOCK_BYTES) % TAR_BLOCK_BYTES, out);
}

void tar_end(FILE *out)
{
    static const char zeros[2 * TAR_BLOCK_BYTES];
    fwrite(zeros, 1, sizeof zeros, out);
}
