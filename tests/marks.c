// SPDX-License-Identifier: Apache-2.0
// Records the place of an assertion less often. For the report of a crash, Check records the place of every assertion
// that holds, by a message to the parent process. These messages take most of the time of a test that compares millions
// of numbers. Recording a place again is of no use until another place was recorded. Linked into all tests with -Wl,--
// wrap=_mark_point.
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);

void __wrap__mark_point(const char *file, int line)
{
    static _Thread_local const char *last_file;
    static _Thread_local int last_line;
    if (line == last_line && file == last_file) return;
    last_file = file;
    last_line = line;
    __real__mark_point(file, line);
}
