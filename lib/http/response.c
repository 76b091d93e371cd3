// SPDX-License-Identifier: Apache-2.0
// Writes the heads of responses.
#include <stdio.h>
#include <time.h>

#include "lib/http/internal.h"

static const char *response_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {100, "Continue"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {529, "Overloaded"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return status < 500 ? "Client Error" : "Server Error";
}

bool response_has_body(int status)
{
    return status >= 200 && status != 204 && status != 304;
}

void response_count(struct http_server *server, int status)
{
    int class = status / 100;
    if (class > 0 && class < HTTP_STATUS_CLASSES) atomic_fetch_add(&server->responses[class], 1);
}

// Returns "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n" for the current time. Each thread formats it once a second.
static const char *date_line(void)
{
    static _Thread_local time_t made;
    static _Thread_local char line[64];
    static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = time(NULL);
    if (now == made) return line;
    struct tm t;
    gmtime_r(&now, &t);
    snprintf(line, sizeof line, "Date: %s, %02d %s %d %02d:%02d:%02d GMT\r\n", days[t.tm_wday], t.tm_mday,
             months[t.tm_mon], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
    made = now;
    return line;
}

static void write_length(struct http_buffer *out, const struct response_head *head)
{
    char line[48];
    if (!response_has_body(head->status)) return;
    if (head->length >= 0) {
        snprintf(line, sizeof line, "Content-Length: %lld\r\n", (long long)head->length);
        http_buffer_text(out, line);
    } else if (head->chunked) {
        http_buffer_text(out, "Transfer-Encoding: chunked\r\n");
    }
}

void response_head_write(struct http_buffer *out, const struct response_head *head)
{
    char line[64];
    snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\n", head->status, response_reason(head->status));
    http_buffer_reserve(out, 256);
    http_buffer_text(out, line);
    http_buffer_text(out, date_line());
    if (head->content_type) {
        http_buffer_text(out, "Content-Type: ");
        http_buffer_text(out, head->content_type);
        http_buffer_text(out, "\r\n");
    }
    write_length(out, head);
    if (head->extra) http_buffer_append(out, http_buffer_start(head->extra), http_buffer_size(head->extra));
    if (head->close)
        http_buffer_text(out, "Connection: close\r\n");
    else if (head->http_1_0)
        http_buffer_text(out, "Connection: keep-alive\r\n");
    http_buffer_text(out, "\r\n");
}
