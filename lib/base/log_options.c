// SPDX-License-Identifier: Apache-2.0
#include "lib/base/log_options.h"

#include <signal.h>
#include <string.h>

#include "lib/base/journal.h"

void log_options_apply_level(const struct log_options *options)
{
    enum log_level level = LOG_INFO;
    log_level_parse(options->level, &level);
    log_set_level(level);
}

void log_options_apply(const struct log_options *options, const char *process)
{
    log_setup(process, LOG_INFO);
    log_options_apply_level(options);
    log_set_format(strcmp(options->format, "json") == 0 ? LOG_FORMAT_JSON : LOG_FORMAT_LOGFMT);
    log_set_journal(journal_is_stderr());
    signal(SIGPIPE, SIG_IGN);
}
