// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "router/metrics/metrics.h"

// Reads the first bytes of a file as text.
static bool file_read(const char *path, char *text, size_t room)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t size = fread(text, 1, room - 1, file);
    fclose(file);
    text[size] = 0;
    return size > 0;
}

// Returns the time when the machine was started, in seconds since 1970.
static double boot_s(void)
{
    char line[256];
    long long s = 0;
    FILE *file = fopen("/proc/stat", "re");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "btime %lld", &s) != 1)
        continue;
    if (file) fclose(file);
    return (double)s;
}

// Reads /proc/self/stat, see proc(5). The name of the program, in parentheses, may contain blanks.
static void read_stat(struct process_metrics *process)
{
    char text[1024];
    if (!file_read("/proc/self/stat", text, sizeof text)) return;
    const char *rest = strrchr(text, ')');
    unsigned long user, system, bytes;
    unsigned long long start;
    long pages, ticks = sysconf(_SC_CLK_TCK);
    const char *format = ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %llu %lu %ld";
    if (!rest || sscanf(rest, format, &user, &system, &start, &bytes, &pages) != 5) return;
    process->cpu_s = (double)(user + system) / (double)ticks;
    process->start_s = boot_s() + (double)start / (double)ticks;
    process->virtual_bytes = (double)bytes;
    process->resident_bytes = (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static int count_fds(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return 0;
    for (const struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n - 1; // does not count the descriptor of the opened folder itself
}

void process_metrics_read(struct process_metrics *process)
{
    struct rlimit files;
    *process = (struct process_metrics){.open_fds = count_fds()};
    read_stat(process);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) process->max_fds = (double)files.rlim_cur;
}
