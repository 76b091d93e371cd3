// SPDX-License-Identifier: Apache-2.0
// Threads for work on the disk, which may block: uploads, downloads and deletions. Any thread may add work. Work that
// is added later may run earlier or at the same time.
#pragma once

struct disk_pool;
typedef void disk_work_fn(void *arg);

struct disk_pool *disk_pool_open(void);
void disk_pool_add(struct disk_pool *pool, disk_work_fn *run, void *arg);
void disk_pool_close(struct disk_pool *pool); // runs the work that was added, then joins the threads. NULL is allowed
