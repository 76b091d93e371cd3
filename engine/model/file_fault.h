// SPDX-License-Identifier: Apache-2.0
// Ends the process with one sentence if a page of a mapped checkpoint cannot be read: the file was truncated after it
// was opened, or its disk fails. The kernel then raises SIGBUS in the thread that reads the page, which may be any
// thread of a backend, so there is no call that could return an error. Other faults go to the earlier handler.
#pragma once

#include "engine/model/safetensors.h"

// Any thread may call. Several checkpoints may be watched at once. Unwatch a checkpoint before it is closed.
void file_fault_watch(const struct safetensors *st);
void file_fault_unwatch(const struct safetensors *st);
