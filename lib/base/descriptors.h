// SPDX-License-Identifier: Apache-2.0
// Sets the limit of file descriptors of this process, and computes the share of each listener.
#pragma once

// Raises the soft limit to the hard limit, at most to DESCRIPTORS_MAX. Daemons call it when they start.
enum { DESCRIPTORS_MAX = 1 << 20 };
void descriptors_raise(void);

// Returns the maximum number of connections of a listener: `sixteenths` / 16 of the limit of descriptors, at most
// `max`. The listeners of a process together may use fifteen sixteenths; the rest is for files.
int descriptors_share(int sixteenths, int max);
