// SPDX-License-Identifier: Apache-2.0
// The limit of file descriptors of this process, and how listeners share it.
#pragma once

// Raises the soft limit to the hard limit, but not beyond DESCRIPTORS_MAX. Called at the start of a daemon.
enum { DESCRIPTORS_MAX = 1 << 20 };
void descriptors_raise(void);

// The connections that a listener may hold: `sixteenths` of the limit of descriptors, at most `max`. The shares of a
// process must leave a sixteenth for its files.
int descriptors_share(int sixteenths, int max);
