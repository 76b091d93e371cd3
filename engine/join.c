// SPDX-License-Identifier: Apache-2.0
#include "engine/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/group.h"
#include "engine/join_follower.h"
#include "engine/join_leader.h"
#include "lib/base/log_writer.h"

static bool is_address(const char *text)
{
    const char *colon = strrchr(text, ':');
    char *end;
    if (!colon || colon == text) return false;
    const long port = strtol(colon + 1, &end, 10);
    return end > colon + 1 && !*end && port > 0 && port < 65536;
}

enum status join_check(const struct join_options *o)
{
    if (o->lead && o->join) return status_fail(STATUS_INVALID, "--lead and --join: give one of them");
    if (o->join && !is_address(o->join))
        return status_fail(STATUS_INVALID, "--join '%s': must be HOST:PORT with a port from 1 to 65535", o->join);
    return STATUS_OK;
}

// Checks what a process needs that leads or follows. Ranks have the same options and need none of it.
static enum status needs_check(const struct join_options *o)
{
#ifndef FOREPACK_MPI
    return status_fail(STATUS_UNSUPPORTED, "--lead and --join: this program was built without MPI");
#endif
    if ((o->join || o->hosts > 1) && !o->token_file)
        return status_fail(STATUS_INVALID,
                           "--cluster-token-file: required with --join, and with --lead and several hosts");
    if ((o->join || o->hosts > 1) && o->tls_ca && (!o->tls_cert || !o->tls_key))
        return status_fail(STATUS_INVALID, "--node-tls-cert, --node-tls-key: --lead and --join need both for TLS");
    return STATUS_OK;
}

int join_run(const char *program, const struct join_options *o, char **argv)
{
    int code = 0;
    if ((!o->lead && !o->join) || !group_is_single()) return -1;
    enum status status = needs_check(o);
    if (status == STATUS_OK) status = o->lead ? join_lead(o, argv, &code) : join_follow(o);
    log_flush();
    if (status == STATUS_OK) return code;
    fprintf(stderr, "forepack-%s: %s\n", program, status_message());
    return status_exit_code(status);
}
