// SPDX-License-Identifier: Apache-2.0
#include "router/front/nodes/message_window.h"

enum { WINDOW_MESSAGES = 100000, WINDOW_US = 5000000 };

enum status message_window_add(struct message_window *window, int64_t now_us)
{
    if (now_us - window->begun_us > WINDOW_US) *window = (struct message_window){.begun_us = now_us};
    if (window->n++ < WINDOW_MESSAGES) return STATUS_OK;
    return status_fail(STATUS_EXHAUSTED, "the node sent over %d messages in %d s", WINDOW_MESSAGES,
                       WINDOW_US / 1000000);
}
