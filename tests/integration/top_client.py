# SPDX-License-Identifier: Apache-2.0
"""forepack top in a terminal of 80 columns and 24 rows: its lines fit, it ends on q and Ctrl-C and stops on Ctrl-Z, and
the terminal is then as before. Usage: top_client.py COMMAND..."""
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time


def check(condition, *what):
    if not condition:
        sys.exit("FAILED: " + " ".join(str(w) for w in what))


def stopped(command, end):
    while time.monotonic() < end:
        pid, status = os.waitpid(command.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            return os.WIFSTOPPED(status)
        time.sleep(0.01)
    return False


def watch(key, stop=False):
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(inner)

    def own_terminal():  # so that Ctrl-C reaches the command
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = subprocess.Popen(sys.argv[1:], stdin=inner, stdout=inner, stderr=inner, preexec_fn=own_terminal)
    text, end = "", time.monotonic() + 60
    while text.count("\x1b[J") < 3 and time.monotonic() < end:  # three frames
        text += os.read(outer, 65536).decode()
    if stop:
        os.write(outer, b"\x1a")
        check(stopped(command, end), "Ctrl-Z does not stop it")
        check(termios.tcgetattr(inner) == before, "the terminal has changed")
        command.send_signal(signal.SIGCONT)
        while text.count("\x1b[?1049h") < 2 and time.monotonic() < end:
            text += os.read(outer, 65536).decode()
        text = text[text.rindex("\x1b[?1049h"):]
        while text.count("\x1b[J") < 3 and time.monotonic() < end:
            text += os.read(outer, 65536).decode()
    os.write(outer, key)
    while "\x1b[?1049l" not in text and time.monotonic() < end:
        text += os.read(outer, 65536).decode()
    check(command.wait(60) == 0, "exit code", command.returncode)
    check(termios.tcgetattr(inner) == before, "the terminal has changed")
    check(text.startswith("\x1b[?1049h\x1b[?25l") and text.index("\x1b[?25h") < text.index("\x1b[?1049l"), repr(text))
    frame = re.sub("\x1b\\[[?0-9;]*[A-Za-z]", "", text.split("\x1b[J")[1]).replace("\r", "").split("\n")
    check(len(frame) <= 24 and max(len(line) for line in frame) <= 80, frame)
    check(frame[0].startswith("forepack  ready"), frame)
    check(any(line.startswith("<b>&\"' ") for line in frame), frame)


watch(b"q")
watch(b"\x03", stop=True)
