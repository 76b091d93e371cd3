// SPDX-License-Identifier: Apache-2.0
// Writes log lines to standard error on a separate thread. So a reader that stops reading cannot block the threads that
// log.
//
// Lines wait in a bounded ring. A line that does not fit is dropped and counted. Once standard error accepts lines
// again, the event log_lines_dropped tells how many lines are missing there. Each write(2) has whole lines and at most
// PIPE_BUF bytes, so that lines of several processes on one pipe do not mix.
//
// exit() and fatal signals wait up to LOG_FLUSH_MS for the lines in the ring. Callers of _exit() call log_flush()
// first. A child of fork() does not have the thread: its lines are written directly, as if log_writer_start() had not
// been called.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { LOG_RING_BYTES = 1 << 20, LOG_FLUSH_MS = 1000 };

// Starts the thread; later calls do nothing. Lines are written directly if no thread can be created. Handles SIGSEGV,
// SIGBUS, SIGILL, SIGFPE and SIGABRT: flushes the log and then calls the previous handler. Call it before other threads
// start. The thread calls `dropped_fn` to log that lines were dropped: pass log_tell_dropped() of log.h.
void log_writer_start(void (*dropped_fn)(uint64_t lines));

// Queues one line of at most PIPE_BUF bytes, newline included. Any thread; does not block and takes no lock. If
// log_writer_start() was not called, writes the line itself.
void log_writer_put(const char *line, size_t n);

// Writes the bytes directly to standard error. Blocks while standard error accepts no bytes. Bytes are lost if the
// reader is gone.
void log_write_stderr(const char *bytes, size_t n);

// Waits until the lines queued so far are written, at most LOG_FLUSH_MS. Any thread, even in a signal handler.
void log_flush(void);

uint64_t log_lines_dropped(void); // number since the start; any thread
