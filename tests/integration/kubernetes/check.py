# SPDX-License-Identifier: Apache-2.0
"""Checks rendered manifests: names that do not resolve, ports and options that do not fit, missing protection.

Each check yields sentences. What only a cluster knows, such as Secrets that its operator makes, is in OUTSIDE."""
import json
import os
import re

import jsonschema

from manifests import bytes_of, matches

# Secrets that the operator makes, with their keys. docs/kubernetes.md shows how.
OUTSIDE = {"forepack-api-keys": ["keys"], "forepack-operator-key": ["key"], "forepack-cluster-token": ["token"],
           "forepack-hub-token": ["token"]}
CERTIFICATE_KEYS = ["tls.crt", "tls.key", "ca.crt"]
IMAGE_FOLDER = "/usr/share/forepack/"
PORT_OPTIONS = {"http": "http-port", "grpc": "port", "nodes": "node-listen", "probe": "probe-listen"}


def secret_keys(manifests, name):
    """Returns the keys of a Secret, or None if no manifest creates the Secret."""
    if any(name == c["spec"]["secretName"] for c in manifests.of("Certificate")):
        return CERTIFICATE_KEYS
    secret = manifests.find("Secret", name)
    if secret:
        return list(secret.get("data", {})) + list(secret.get("stringData", {}))
    return OUTSIDE.get(name)


def schema_findings(manifests):
    with open(os.path.join(os.path.dirname(__file__), "schemas.json"), encoding="utf-8") as file:
        schemas = json.load(file)
    for document in manifests.documents:
        known = schemas.get(document["kind"])
        if not known:
            continue
        where = "%s/%s" % (document["kind"], document["metadata"]["name"])
        if document["apiVersion"] != known["apiVersion"]:
            yield "%s: the version is %s, not %s" % (where, document["apiVersion"], known["apiVersion"])
        validator = jsonschema.Draft202012Validator({**known["spec"], "$defs": schemas["$defs"]})
        for error in validator.iter_errors(document["spec"]):
            yield "%s: %s: %s" % (where, "/".join(map(str, error.absolute_path)), error.message)


def volume_findings(manifests):
    for where, template in manifests.templates():
        spec = template["spec"]
        mounted = set()
        for container in spec["containers"]:
            for mount in container.get("volumeMounts", []):
                mounted.add(mount["name"])
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for name in mounted - set(volumes):
            yield "%s: there is no volume %s" % (where, name)
        for name in set(volumes) - mounted:
            yield "%s: nothing mounts the volume %s" % (where, name)
        for name, volume in volumes.items():
            if "configMap" in volume and not manifests.find("ConfigMap", volume["configMap"]["name"]):
                yield "%s: there is no ConfigMap %s" % (where, volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                if not manifests.find("PersistentVolumeClaim", claim):
                    yield "%s: there is no PersistentVolumeClaim %s" % (where, claim)
            if "secret" in volume:
                secret = volume["secret"]
                if secret_keys(manifests, secret["secretName"]) is None:
                    yield "%s: nobody makes the Secret %s" % (where, secret["secretName"])
                if secret.get("defaultMode") != 0o440:
                    yield "%s: the Secret %s is not mounted with mode 0440" % (where, secret["secretName"])
        for kind, field in (("ServiceAccount", "serviceAccountName"), ("PriorityClass", "priorityClassName")):
            if field in spec and not manifests.find(kind, spec[field]):
                yield "%s: there is no %s %s" % (where, kind, spec[field])


def file_findings(manifests):
    """Files that options name are in the image, in a volume of models, or a key of a mounted Secret or ConfigMap."""
    for where, template in manifests.templates():
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for name, value in manifests.options(template)[1]:
            if not value.startswith("/") or value.startswith(IMAGE_FOLDER):
                continue
            for mount in spec["containers"][0].get("volumeMounts", []):
                if value == mount["mountPath"] or value.startswith(mount["mountPath"] + "/"):
                    break
            else:
                yield "%s: --%s %s: nothing is mounted there" % (where, name, value)
                continue
            volume, key = volumes.get(mount["name"], {}), value[len(mount["mountPath"]) + 1:]
            if "secret" in volume and key not in (secret_keys(manifests, volume["secret"]["secretName"]) or []):
                yield "%s: --%s %s: the Secret has no key %s" % (where, name, value, key)
            if "configMap" in volume and not manifests.file(template, value):
                yield "%s: --%s %s: the ConfigMap has no such file" % (where, name, value)


def model_findings(manifests):
    """Models of options are filled by the Job, at a pinned commit."""
    job = manifests.find("Job", "forepack-fill-models")
    filled = []
    if job:
        text = manifests.file(job["spec"]["template"], "/etc/forepack/models/models.txt")
        for line in text.split("\n"):
            words = line.split()
            if words and not words[0].startswith("#"):
                filled.append("/models/" + words[0])
                if len(words) != 3 or not re.fullmatch(r"[0-9a-f]{40}", words[2]):
                    yield "models.txt: '%s' is not pinned to a commit" % line
        if not filled:
            yield "models.txt: the Job fills no model"
    for where, template in manifests.templates():
        model = dict(manifests.options(template)[1]).get("model")
        if model and not model.startswith(IMAGE_FOLDER) and model not in filled:
            yield "%s: nobody fills %s" % (where, model)


def container_ports(template):
    return {port["name"]: port["containerPort"] for container in template["spec"]["containers"]
            for port in container.get("ports", [])}


def port_findings(manifests):
    for where, template in manifests.templates():
        program, options = manifests.options(template)
        for name, number in container_ports(template).items():
            option = PORT_OPTIONS.get(name)
            value = dict(options).get(option, "") if option else ""
            if option and value.rsplit(":", 1)[-1] != str(number):
                yield "%s: port %s is %d, but --%s of %s is '%s'" % (where, name, number, option, program, value)
    for service in manifests.of("Service"):
        name = service["metadata"]["name"]
        found = manifests.selected({"matchLabels": service["spec"]["selector"]})
        if not found:
            yield "Service/%s: selects no pod" % name
        for port in service["spec"]["ports"]:
            for where, template in found:
                if container_ports(template).get(port["targetPort"]) != port["port"]:
                    yield "Service/%s: %s has no port %s with number %d" % (name, where, port["targetPort"], port["port"])


def router_findings(manifests):
    """Nodes reach the router by a Service that shows it before it is ready, under a name of its certificate."""
    for where, template in manifests.templates():
        options = dict(manifests.options(template)[1])
        if "router" not in options:
            continue
        host, _, port = options["router"].partition(":")
        service = manifests.find("Service", host)
        if not service or port not in [str(p["port"]) for p in service["spec"]["ports"]]:
            yield "%s: --router %s is no port of a Service" % (where, options["router"])
            continue
        if not service["spec"].get("publishNotReadyAddresses") or service["spec"].get("clusterIP") != "None":
            yield "Service/%s: nodes cannot find a router that is not ready" % host
        if "node-tls-ca" in options and not any(
                host in c["spec"].get("dnsNames", []) for c in manifests.of("Certificate")):
            yield "%s: no certificate has the name %s" % (where, host)


def selector_findings(manifests):
    for budget in manifests.of("PodDisruptionBudget"):
        if not manifests.selected(budget["spec"]["selector"]):
            yield "PodDisruptionBudget/%s: selects no pod" % budget["metadata"]["name"]
    for deployment in manifests.of("Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        if deployment["spec"]["selector"]["matchLabels"].items() - labels.items():
            yield "Deployment/%s: its selector does not match its pods" % deployment["metadata"]["name"]
    for scaled in manifests.of("ScaledObject"):
        target = scaled["spec"]["scaleTargetRef"]
        if not manifests.find(target["kind"], target["name"]):
            yield "ScaledObject/%s: there is no %s %s" % (scaled["metadata"]["name"], target["kind"], target["name"])
    for monitor in manifests.of("ServiceMonitor"):
        where = "ServiceMonitor/%s" % monitor["metadata"]["name"]
        spec = monitor["spec"]
        services = [s for s in manifests.of("Service")
                    if spec["selector"]["matchLabels"].items() <= s["metadata"].get("labels", {}).items()]
        if not services:
            yield "%s: selects no Service" % where
        for service in services:
            if service["metadata"]["labels"].get(spec["jobLabel"]) != "forepack":
                yield "%s: the job is not forepack, which the alert rules expect" % where
            for endpoint in spec["endpoints"]:
                if endpoint["port"] not in [port["name"] for port in service["spec"]["ports"]]:
                    yield "%s: the Service has no port %s" % (where, endpoint["port"])
        for endpoint in spec["endpoints"]:
            for part in (endpoint.get("authorization", {}).get("credentials"),
                         endpoint.get("tlsConfig", {}).get("ca", {}).get("secret")):
                if part and part["key"] not in (secret_keys(manifests, part["name"]) or []):
                    yield "%s: nobody makes the Secret %s with the key %s" % (where, part["name"], part["key"])
    for monitor in manifests.of("PodMonitor"):
        found = manifests.selected(monitor["spec"]["selector"])
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if not found or any(endpoint["port"] not in container_ports(template) for _, template in found):
                yield "PodMonitor/%s: not each pod has a port %s" % (monitor["metadata"]["name"], endpoint["port"])
    for certificate in manifests.of("Certificate"):
        issuer = certificate["spec"]["issuerRef"]
        if issuer["kind"] == "Issuer" and not manifests.find("Issuer", issuer["name"]):
            yield "Certificate/%s: there is no Issuer %s" % (certificate["metadata"]["name"], issuer["name"])
    for issuer in manifests.of("Issuer"):
        name = issuer["spec"].get("ca", {}).get("secretName")
        if name and not any(name == c["spec"]["secretName"] and c["spec"].get("isCA") for c in manifests.of("Certificate")):
            yield "Issuer/%s: nobody makes the authority %s" % (issuer["metadata"]["name"], name)


def may_connect(manifests, source, template, port):
    """Returns true if the NetworkPolicies let a pod with the labels `source` of the namespace reach a port of a template."""
    policies = [p for p in manifests.of("NetworkPolicy") if "Ingress" in p["spec"]["policyTypes"]
                and any(template is t for _, t in manifests.selected(p["spec"]["podSelector"]))]
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            if "ports" in rule and not any(p["port"] in (port, container_ports(template).get(port)) for p in rule["ports"]):
                continue
            if "from" not in rule:
                return True
            for peer in rule["from"]:
                if "namespaceSelector" not in peer and matches(peer["podSelector"], source):
                    return True
    return not policies


def network_findings(manifests):
    for policy in manifests.of("NetworkPolicy"):
        where = "NetworkPolicy/%s" % policy["metadata"]["name"]
        found = manifests.selected(policy["spec"]["podSelector"])
        if not found:
            yield "%s: selects no pod" % where
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                for label, template in found:
                    if isinstance(port["port"], str) and port["port"] not in container_ports(template):
                        yield "%s: %s has no port %s" % (where, label, port["port"])
    router = [template for _, template in manifests.templates() if "nodes" in container_ports(template)]
    for template in router:
        for where, other in manifests.templates():
            labels = other["metadata"]["labels"]
            node = "router" in dict(manifests.options(other)[1])
            if may_connect(manifests, labels, template, "nodes") != node:
                yield "%s: %s the node port" % (where, "cannot reach" if node else "reaches")
        if may_connect(manifests, {"app": "stranger"}, template, "nodes"):
            yield "a stranger reaches the node port"
        if not may_connect(manifests, {"app": "stranger"}, template, "http"):
            yield "a client cannot reach the HTTP port"


def protection_findings(manifests):
    for where, template in manifests.templates():
        spec = template["spec"]
        if spec.get("enableServiceLinks") is not False:
            yield "%s: enableServiceLinks is not false" % where
        if spec.get("automountServiceAccountToken") is not False:
            yield "%s: the token of the service account is mounted" % where
        context = spec.get("securityContext", {})
        if not context.get("runAsNonRoot") or not context.get("runAsUser") or "fsGroup" not in context:
            yield "%s: runs as root, or cannot read Secrets" % where
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield "%s: has no seccomp profile" % where
        for container in spec["containers"]:
            inner = container.get("securityContext", {})
            if inner.get("allowPrivilegeEscalation") is not False or not inner.get("readOnlyRootFilesystem"):
                yield "%s: the root file system can be written, or privileges can grow" % where
            if inner.get("capabilities", {}).get("drop") != ["ALL"] or "add" in inner.get("capabilities", {}):
                yield "%s: has capabilities" % where
            resources = container.get("resources", {})
            if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get("limits", {}):
                yield "%s: has no requests, or no limit of memory" % where
            elif bytes_of(resources["requests"]["memory"]) > bytes_of(resources["limits"]["memory"]):
                yield "%s: asks for more memory than its limit" % where
            if not where.startswith("Job/"):
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    if probe not in container:
                        yield "%s: has no %s" % (where, probe)


def process_findings(manifests):
    """Memory for ranks, time to drain."""
    for where, template in manifests.templates():
        spec, (program, options) = template["spec"], manifests.options(template)
        container = spec["containers"][0]
        options = dict(options)
        if program == "forepack-router":
            needed = (int(options.get("drain-ms", 30000)) + int(options.get("shutdown-delay-ms", 0))) / 1000 + 5
            if spec.get("terminationGracePeriodSeconds", 30) < needed:
                yield "%s: the grace period is shorter than the drain, %d s" % (where, needed)
        if "router" not in options:
            continue
        shared = [volume["emptyDir"] for volume in spec.get("volumes", []) if any(
            m["name"] == volume["name"] and m["mountPath"] == "/dev/shm" for m in container["volumeMounts"])]
        if not shared or shared[0].get("medium") != "Memory" or "sizeLimit" not in shared[0]:
            yield "%s: /dev/shm is no memory with a limit" % where
        elif bytes_of(shared[0]["sizeLimit"]) >= bytes_of(container["resources"]["limits"]["memory"]):
            yield "%s: /dev/shm may fill all memory of the container" % where
        if spec.get("terminationGracePeriodSeconds", 30) < 60:
            yield "%s: the grace period is too short for a drain" % where
        if "topologySpreadConstraints" not in spec:
            yield "%s: pods may all be on one host" % where


def option_findings(manifests, known):
    """known: options by program, from --help."""
    for where, template in manifests.templates():
        program, options = manifests.options(template)
        for name, _ in options if program in known else []:
            if name not in known[program]:
                yield "%s: %s has no option --%s" % (where, program, name)
        if program.startswith("forepack-") and program not in known:
            yield "%s: there is no program %s" % (where, program)


CHECKS = [schema_findings, volume_findings, file_findings, model_findings, port_findings, router_findings, selector_findings,
          network_findings, protection_findings, process_findings]


def findings(manifests, known):
    found = [finding for check in CHECKS for finding in check(manifests)]
    return found + list(option_findings(manifests, known))
