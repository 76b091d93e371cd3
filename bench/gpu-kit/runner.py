# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of the kit. A step is a command with a time limit, in a process group of its own.

A step leaves steps/NAME.json with its state, NAME.log, and a measurement also NAME.json with its rows."""
import json
import os
import signal
import subprocess
import sys
import time


def say(text):
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def end_group(group, how):
    try:
        os.killpg(group, how)
    except OSError:
        pass


def last_line(path):
    with open(path, errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    failed = [line for line in lines if ":F:" in line or ":E:" in line]  # the first failed assertion of Check
    return (failed or lines[-1:] or [""])[0][:240]


class Step:
    """A command. `rows`: a measurement, which prints JSON for NAME.json; else a test."""

    def __init__(self, name, seconds, command, rows=False, environment=None):
        self.name, self.seconds, self.command, self.rows = name, seconds, command, rows
        self.environment = environment or {}


class Runner:
    def __init__(self, out, limit_s, version, trial):
        self.out, self.version, self.trial = out, version, trial
        self.end = time.monotonic() + limit_s
        self.stopped = False
        self.groups = set()  # groups of running steps
        os.makedirs(os.path.join(out, "steps"), exist_ok=True)

    def seconds_left(self):
        return 0 if self.stopped else self.end - time.monotonic()

    def stop(self, *_):
        """Signal handler: ends the running steps and starts no further steps, so that the table is still written."""
        self.stopped = True
        for group in list(self.groups):
            end_group(group, signal.SIGTERM)

    def path(self, name):
        return os.path.join(self.out, name)

    def state(self, name):
        """Returns the state of a step: a dict with `state` and `kit`; None if it never ran."""
        try:
            with open(self.path(os.path.join("steps", name + ".json"))) as file:
                return json.load(file)
        except (OSError, ValueError):
            return None

    def passed(self, name):
        return (self.state(name) or {}).get("state") == "passed"

    def failed(self, name):
        return (self.state(name) or {}).get("state") in ("failed", "stopped")

    def note(self, name, state, said, seconds=0.0):
        with open(self.path(os.path.join("steps", name + ".json")), "w") as file:
            json.dump({"step": name, "state": state, "said": said, "seconds": round(seconds, 1), "kit": self.version}, file)
        say("%s: %s%s" % (name, state, ": " + said if said else ""))

    def forget(self, name):
        """Removes the state of a step and its rows."""
        for path in (os.path.join("steps", name + ".json"), name + ".json"):
            if os.path.exists(self.path(path)):
                os.remove(self.path(path))

    def rank(self, step):
        """Order of steps: steps that another kit failed (they may be mended), steps never tried, steps that this kit failed."""
        before = self.state(step.name)
        if before is None or before["state"] in ("not run", "passed", "skipped"):
            return 1
        return 0 if before.get("kit") != self.version else 2

    def run(self, step, base):
        """Runs the step unless it passed in an earlier run with this folder."""
        before = self.state(step.name)
        if before and before["state"] in ("passed", "skipped"):
            say("%s: %s in an earlier run" % (step.name, before["state"]))
            return
        bound = min(step.seconds, self.seconds_left())
        if bound <= 1:
            if not before:
                self.note(step.name, "not run", "no time was left: run again with the same --out")
            return
        say("%s: %s" % (step.name, " ".join(step.command)))
        log, rows = self.path(step.name + ".log"), self.path(step.name + ".json")
        code, took = self.spawn(step.command, bound, rows + ".part" if step.rows else log, log,
                                dict(base, **step.environment))
        if step.rows and code == 0:
            os.replace(rows + ".part", rows)
        elif step.rows and os.path.exists(rows + ".part"):
            os.remove(rows + ".part")
        if code == 0:
            self.note(step.name, "passed", "" if step.rows else last_line(log), took)
        elif code == 77 and (step.rows or self.trial):  # on a GPU that runs passes, a test must not be skipped
            self.note(step.name, "skipped", last_line(log), took)
        elif self.stopped:
            self.note(step.name, "stopped", "with the whole run", took)
        elif code == 124:
            self.note(step.name, "stopped", "after its time limit of %.0f s" % bound, took)
        else:
            self.note(step.name, "failed", last_line(log) or "exit code %d" % code, took)

    def spawn(self, command, seconds, stdout, stderr, environment):
        """Runs the command and kills it after `seconds`. Returns the exit code, 124 if it was stopped, and the seconds."""
        begin = time.monotonic()
        with open(stdout, "wb") as output, open(stderr, "ab" if stderr == stdout else "wb") as errors:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment,
                                           start_new_session=True)
            except OSError as error:
                errors.write(("%s\n" % error).encode())
                return 127, 0.0
            self.groups.add(process.pid)
            if self.stopped:  # while it started
                end_group(process.pid, signal.SIGTERM)
            code = None
            for wait, ending in ((seconds, signal.SIGTERM), (5, signal.SIGKILL), (5, signal.SIGKILL)):
                try:
                    code = process.wait(wait)
                    break
                except subprocess.TimeoutExpired:
                    end_group(process.pid, ending)
            end_group(process.pid, signal.SIGKILL)  # ends processes that the command left running
            self.groups.discard(process.pid)
        took = time.monotonic() - begin
        return (124 if took >= seconds else code), took
