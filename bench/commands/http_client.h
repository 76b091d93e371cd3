// SPDX-License-Identifier: Apache-2.0
// The client side of HTTP/1.1 for benchmarks of the router: kept-alive connections on loopback.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/status.h"

// Connects a socket. Returns STATUS_UNAVAILABLE if that fails, and leaves *fd_p unchanged.
enum status http_client_open(int port, int *fd_p);
// Returns "POST path HTTP/1.1..." with its body. The caller frees the string.
char *http_client_request(const char *path, const char *body);
// Sends a request and reads the whole answer, which must have the status 200 and a Content-Length.
enum status http_client_call(int fd, const char *request, size_t size);
enum status http_client_send(int fd, const char *bytes, size_t size);
