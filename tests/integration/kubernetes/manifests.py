# SPDX-License-Identifier: Apache-2.0
"""Rendered Kubernetes manifests: objects, pod templates, selectors, options of programs."""
import re

WORKLOADS = ("Deployment", "LeaderWorkerSet", "Job")


class Manifests:
    """The objects of one rendered overlay."""

    def __init__(self, documents):
        self.documents = [document for document in documents if document]

    def of(self, *kinds):
        return [document for document in self.documents if document["kind"] in kinds]

    def find(self, kind, name):
        for document in self.of(kind):
            if document["metadata"]["name"] == name:
                return document
        return None

    def templates(self):
        """Returns pairs of a label for messages and a pod template."""
        found = []
        for workload in self.of(*WORKLOADS):
            label = "%s/%s" % (workload["kind"], workload["metadata"]["name"])
            if workload["kind"] == "LeaderWorkerSet":
                group = workload["spec"]["leaderWorkerTemplate"]
                for name in ("leaderTemplate", "workerTemplate"):
                    if name in group:
                        found.append((label, group[name]))
            else:
                found.append((label, workload["spec"]["template"]))
        return found

    def selected(self, selector):
        return [pair for pair in self.templates() if matches(selector, pair[1]["metadata"]["labels"])]

    def options(self, template):
        """Returns (program, [(option, value)]) of a template's container: those of its --config file, then its flags."""
        container = template["spec"]["containers"][0]
        words = container.get("command", []) + container.get("args", [])
        program = words[0].rsplit("/", 1)[-1]
        if program == "forepack-group":
            program = "forepack-worker"
        options, i = [], 1
        while i < len(words):
            word = words[i]
            i += 1
            if not word.startswith("--"):
                continue
            name, equals, value = word[2:].partition("=")
            if not equals and i < len(words) and not words[i].startswith("--"):
                value, i = words[i], i + 1
            options.append((name, value))
        config = dict(options).get("config")
        if config:
            options = config_options(self.file(template, config)) + options
        return program, options

    def file(self, template, path):
        """Returns the text of a file that a ConfigMap puts into the container, or an empty text."""
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for mount in spec["containers"][0].get("volumeMounts", []):
            config_map = volumes.get(mount["name"], {}).get("configMap")
            if not config_map:
                continue
            data = (self.find("ConfigMap", config_map["name"]) or {}).get("data", {})
            if mount.get("subPath") and mount["mountPath"] == path:
                return data.get(mount["subPath"], "")
            if path.startswith(mount["mountPath"] + "/"):
                return data.get(path[len(mount["mountPath"]) + 1:], "")
        return ""


def matches(selector, labels):
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions") or []:
        inside = labels.get(term["key"]) in term.get("values", [])
        if {"In": not inside, "NotIn": inside, "Exists": term["key"] not in labels,
                "DoesNotExist": term["key"] in labels}[term["operator"]]:
            return False
    return True


def config_options(text):
    options = []
    for line in text.split("\n"):
        found = re.match(r"\s*([a-z0-9-]+)\s*=\s*(.*?)\s*$", line)
        if found:
            options.append(found.groups())
    return options


def bytes_of(quantity):
    number, unit = re.match(r"^([0-9.]+)([A-Za-z]*)$", str(quantity)).groups()
    return float(number) * {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}[unit]
