// SPDX-License-Identifier: Apache-2.0
#include "lib/http/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

// --- parameters of a header: ; name=value; name="value"

// Copies a value to `out` [room], without its quotes and backslashes. Advances *at_p beyond the value. Returns false if
// the value is malformed or too long.
static bool value_read(const char **at_p, char *out, size_t room)
{
    const char *at = *at_p;
    bool quoted = *at == '"';
    size_t n = 0;
    for (at += quoted; *at && (quoted ? *at != '"' : !strchr("; \t", *at)); at++) {
        if (quoted && *at == '\\' && (at[1] == '"' || at[1] == '\\')) at++;
        if (n + 1 >= room) return false;
        out[n++] = *at;
    }
    if (quoted && *at != '"') return false;
    out[n] = '\0';
    *at_p = at + quoted;
    return true;
}

// Reads the parameter `name` of a header's value. Returns 1 if it was found, 0 if there is none, -1 if the header is
// malformed.
static int parameter_read(const char *header, const char *name, char *out, size_t room)
{
    size_t name_size = strlen(name);
    const char *at = header + strcspn(header, ";");
    while (*at == ';') {
        at += 1 + strspn(at + 1, " \t");
        size_t n = strcspn(at, "=; \t");
        bool wanted = n == name_size && strncasecmp(at, name, n) == 0;
        char ignored[MULTIPART_HEADERS_BYTES];
        if (at[n] != '=') return n ? -1 : 0;
        at += n + 1;
        if (!value_read(&at, wanted ? out : ignored, wanted ? room : sizeof ignored)) return -1;
        if (wanted) return 1;
        at += strspn(at, " \t");
    }
    return *at ? -1 : 0;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef0123456789ABCDEF", *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) % 16 : -1;
}

// Decodes UTF-8''a%20b in place (RFC 5987), as older clients send names that are not ASCII. Returns false if the text
// has another form.
static bool extended_decode(char *text)
{
    char *quote = strchr(text, '\''), *from = quote ? strchr(quote + 1, '\'') : NULL, *to = text;
    if (!from) return false;
    for (from++; *from; from++) {
        int high = *from == '%' ? hex_digit(from[1]) : -1, low = high >= 0 ? hex_digit(from[2]) : -1;
        if (*from == '%' && (low < 0 || (high == 0 && low == 0))) return false;
        *to++ = *from == '%' ? (char)(16 * high + low) : *from;
        if (*from == '%') from += 2;
    }
    *to = '\0';
    return true;
}

// --- start

enum status multipart_init(struct multipart *m, const char *content_type)
{
    static const char type[] = "multipart/form-data";
    char boundary[MULTIPART_BOUNDARY_BYTES + 1];
    *m = (struct multipart){.state = MULTIPART_DATA};
    size_t n = content_type ? strcspn(content_type, "; \t") : 0;
    if (n != sizeof type - 1 || strncasecmp(content_type, type, n) != 0)
        return status_fail(STATUS_INVALID, "the body must be of the type multipart/form-data");
    if (parameter_read(content_type, "boundary", boundary, sizeof boundary) != 1 || !*boundary)
        return status_fail(STATUS_INVALID, "Content-Type: multipart/form-data needs a boundary of 1 to %d bytes",
                           MULTIPART_BOUNDARY_BYTES);
    m->delimiter_size = (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%s", boundary);
    http_buffer_append(&m->held, "\r\n", 2); // the first delimiter may be the first line
    return STATUS_OK;
}

void multipart_fini(struct multipart *m)
{
    http_buffer_free(&m->held);
}

// --- headers of a part

static enum status malformed(const char *what)
{
    return status_fail(STATUS_INVALID, "the multipart body is malformed: %s", what);
}

struct part_names {
    char name[MULTIPART_NAME_BYTES + 1], filename[MULTIPART_FILENAME_BYTES + 1];
    bool has_name, has_filename;
};

static enum status disposition_read(const char *value, struct part_names *names)
{
    int name = parameter_read(value, "name", names->name, sizeof names->name);
    int file = parameter_read(value, "filename", names->filename, sizeof names->filename);
    char extended[MULTIPART_FILENAME_BYTES + 1];
    int other = parameter_read(value, "filename*", extended, sizeof extended);
    if (name < 0 || file < 0 || other < 0 || names->has_name)
        return malformed("Content-Disposition of a part: a name is wrong, too long or given twice");
    names->has_name = name == 1;
    names->has_filename = file == 1 || other == 1;
    if (other == 1 && file == 0) {
        if (!extended_decode(extended)) return malformed("filename* of a part");
        snprintf(names->filename, sizeof names->filename, "%s", extended);
    }
    return STATUS_OK;
}

static enum status header_read(const char *line, struct part_names *names)
{
    size_t n = strcspn(line, ":");
    if (!line[n]) return malformed("a line of a part's headers has no colon");
    const char *value = line + n + 1 + strspn(line + n + 1, " \t");
    if (n == 19 && strncasecmp(line, "Content-Disposition", n) == 0) return disposition_read(value, names);
    if (n != 25 || strncasecmp(line, "Content-Transfer-Encoding", n) != 0) return STATUS_OK;
    bool plain = strcasecmp(value, "binary") == 0 || strcasecmp(value, "8bit") == 0 || strcasecmp(value, "7bit") == 0;
    return plain ? STATUS_OK : malformed("Content-Transfer-Encoding of a part: only binary, 8bit and 7bit are decoded");
}

// Reads headers[size], lines that each end in CRLF.
static enum status headers_read(const char *headers, size_t size, struct part_names *names)
{
    char line[MULTIPART_HEADERS_BYTES + 1];
    for (size_t at = 0; at < size;) {
        const char *end = memmem(headers + at, size - at, "\r\n", 2);
        size_t n = (size_t)(end - headers) - at;
        if (memchr(headers + at, '\0', n)) return malformed("a part's headers have a zero byte");
        memcpy(line, headers + at, n);
        line[n] = '\0';
        TRY(header_read(line, names));
        at += n + 2;
    }
    return names->has_name ? STATUS_OK : malformed("a part has no Content-Disposition with a name");
}

// --- parsing

// Each step parses a piece of the held bytes. It returns false in *more_p if further bytes are needed.
typedef enum status step_fn(struct multipart *m, const struct multipart_ops *ops, void *arg, bool *more_p);

static enum status data_step(struct multipart *m, const struct multipart_ops *ops, void *arg, bool *more_p)
{
    const char *bytes = http_buffer_start(&m->held);
    size_t size = http_buffer_size(&m->held);
    const char *end = memmem(bytes, size, m->delimiter, m->delimiter_size);
    size_t n = end ? (size_t)(end - bytes) : size < m->delimiter_size ? 0 : size - (m->delimiter_size - 1);
    enum status status = STATUS_OK;
    if (m->in_part && n) status = ops->data(arg, bytes, n);
    if (status == STATUS_OK && m->in_part && end) status = ops->end(arg);
    http_buffer_consume(&m->held, end ? n + m->delimiter_size : n);
    if (end) m->state = MULTIPART_DELIMITER;
    *more_p = end != NULL;
    return status;
}

// Reads the rest of the delimiter's line: two hyphens after the last part, else blanks and CRLF.
static enum status delimiter_step(struct multipart *m, const struct multipart_ops *ops, void *arg, bool *more_p)
{
    const char *bytes = http_buffer_start(&m->held);
    size_t size = http_buffer_size(&m->held), n = 0;
    *more_p = false;
    if (size >= 2 && memcmp(bytes, "--", 2) == 0) {
        m->state = MULTIPART_DONE;
        return STATUS_OK;
    }
    while (n < size && (bytes[n] == ' ' || bytes[n] == '\t'))
        n++;
    if (n > MULTIPART_HEADERS_BYTES) return malformed("blanks follow a delimiter");
    if (size < n + 2) return STATUS_OK;
    if (memcmp(bytes + n, "\r\n", 2) != 0) return malformed("a line continues after the delimiter");
    http_buffer_consume(&m->held, n + 2);
    m->state = MULTIPART_HEADERS;
    *more_p = true;
    return STATUS_OK;
}

static enum status headers_step(struct multipart *m, const struct multipart_ops *ops, void *arg, bool *more_p)
{
    const char *bytes = http_buffer_start(&m->held);
    size_t size = http_buffer_size(&m->held);
    struct part_names names = {.has_name = false};
    const char *end = memmem(bytes, size, "\r\n\r\n", 4);
    *more_p = end != NULL;
    if ((end ? (size_t)(end - bytes) : size) > MULTIPART_HEADERS_BYTES - 2)
        return malformed("the headers of a part are too long");
    if (!end) return STATUS_OK;
    if (++m->n_parts > MULTIPART_PARTS_MAX)
        return status_fail(STATUS_INVALID, "the multipart body has more than %d parts", MULTIPART_PARTS_MAX);
    size_t n = (size_t)(end - bytes);
    TRY(headers_read(bytes, n + 2, &names));
    m->in_part = true;
    m->state = MULTIPART_DATA;
    http_buffer_consume(&m->held, n + 4);
    return ops->begin(arg, names.name, names.has_filename ? names.filename : NULL);
}

enum status multipart_feed(struct multipart *m, const char *bytes, size_t size, const struct multipart_ops *ops,
                           void *arg)
{
    static step_fn *const steps[] = {
        [MULTIPART_DATA] = data_step, [MULTIPART_DELIMITER] = delimiter_step, [MULTIPART_HEADERS] = headers_step};
    if (m->state != MULTIPART_DONE) http_buffer_append(&m->held, bytes, size);
    for (bool more = true; more && m->state != MULTIPART_DONE && http_buffer_size(&m->held);)
        TRY(steps[m->state](m, ops, arg, &more));
    if (m->state == MULTIPART_DONE) http_buffer_free(&m->held); // the rest has no meaning (RFC 2046)
    return STATUS_OK;
}

enum status multipart_check_end(const struct multipart *m)
{
    return m->state == MULTIPART_DONE ? STATUS_OK : malformed("its last delimiter is missing");
}
