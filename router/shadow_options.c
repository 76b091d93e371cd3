// SPDX-License-Identifier: Apache-2.0
#include "router/shadow_options.h"

#include <stdlib.h>
#include <string.h>

static enum status fallback_parse(const char *text, double quality, struct shadow_options *o)
{
    size_t size = strcspn(text, ":");
    char *end = "";
    if (strcmp(text, "off") == 0) return STATUS_OK;
    if (size == strlen("answer") && strncmp(text, "answer", size) == 0) o->measure = AGREEMENT_ANSWER;
    if (size == strlen("first-token") && strncmp(text, "first-token", size) == 0) o->measure = AGREEMENT_FIRST_TOKEN;
    o->promise = text[size] ? strtod(text + size + 1, &end) : quality;
    if (!o->measure || *end || (text[size] && !(o->promise > 0 && o->promise < 1)))
        return status_fail(STATUS_INVALID,
                           "--shadow-fallback '%.40s': must be off, first-token[:Q] or answer[:Q] with Q over 0 and "
                           "below 1, such as answer:0.9",
                           text);
    if (o->promise <= 0)
        return status_fail(STATUS_INVALID,
                           "--shadow-fallback '%.40s': with --keep-rate it needs the share of answers "
                           "that must agree, such as answer:0.9",
                           text);
    if (agreement_can_show(o->promise)) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "--shadow-fallback '%.40s': the last %d answers cannot show that a share of %g agrees: at most "
                       "0.996 can be asked for",
                       text, AGREEMENT_WINDOW, o->promise);
}

enum status shadow_options_read(const struct shadow_flags *flags, double quality, struct shadow_options *options_p)
{
    struct shadow_options o = {.share = flags->share, .per_s = (int)flags->per_s};
    TRY(fallback_parse(flags->fallback, quality, &o));
    if (o.measure && o.share <= 0)
        return status_fail(STATUS_INVALID, "--shadow-fallback: needs --shadow, the share of requests to compare");
    *options_p = o;
    return STATUS_OK;
}
