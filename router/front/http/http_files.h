// SPDX-License-Identifier: Apache-2.0
// Handlers of /v1/files. An upload (http_upload.c) and a download (http_download.c) pass in pieces between the
// connection and the disk: at most HTTP_WINDOW_BYTES and a piece of each are in memory.
#pragma once

#include "router/front/http/http_batching.h"

void http_upload_on_head(struct http_exchange *x);
void http_upload_on_body(struct http_exchange *x, const char *bytes, size_t size);
void http_upload_on_request(struct http_exchange *x);
void http_upload_on_close(struct http_exchange *x, bool disconnected);

void http_download_start(struct http_exchange *x, struct http_batching *batching, const char *id);
void http_download_on_drain(struct http_exchange *x);
void http_download_on_close(struct http_exchange *x, bool disconnected);

void http_files_list(struct http_exchange *x);
void http_files_get(struct http_exchange *x); // a file, or its content
void http_files_delete(struct http_exchange *x);

// Appends the file as the API shows it.
void http_file_add(struct bytes *out, const struct file_info *info);
