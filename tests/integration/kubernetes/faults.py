# SPDX-License-Identifier: Apache-2.0
"""Faults that the checks must find: each changes a copy of rendered manifests, and names a word of the finding."""


def container(manifests, name):
    for where, template in manifests.templates():
        if where.endswith("/" + name):
            return template["spec"]["containers"][0]
    raise KeyError(name)


def pod(manifests, name):
    for where, template in manifests.templates():
        if where.endswith("/" + name):
            return template["spec"]
    raise KeyError(name)


def config(manifests, name):
    for document in manifests.of("ConfigMap"):
        for key in document["data"]:
            if key == name:
                return document["data"]
    raise KeyError(name)


def edit_config(manifests, name, old, new):
    data = config(manifests, name)
    assert old in data[name], "%s does not hold '%s'" % (name, old)
    data[name] = data[name].replace(old, new)


def policy(manifests, name):
    return manifests.find("NetworkPolicy", name)["spec"]


def service(manifests, name):
    return manifests.find("Service", name)["spec"]


FAULTS = [
    ("no option", lambda m: container(m, "forepack-router")["args"].append("--no-such-option=1")),
    ("no option", lambda m: edit_config(m, "worker.conf", "model =", "modell = x\nmodel =")),
    ("no port of a Service", lambda m: edit_config(m, "worker.conf", "forepack-router-nodes", "forepack-router-node")),
    ("no port of a Service", lambda m: edit_config(m, "speculator.conf", "50052", "50051")),
    ("not ready", lambda m: service(m, "forepack-router-nodes").pop("publishNotReadyAddresses")),
    ("but --http-port", lambda m: edit_config(m, "router.conf", "http-port = 8000", "http-port = 8001")),
    ("but --probe-listen", lambda m: edit_config(m, "speculator.conf", ":8080", ":8081")),
    ("has no port", lambda m: service(m, "forepack-router")["ports"][0].update(targetPort="web")),
    ("selects no pod", lambda m: service(m, "forepack-router")["selector"].update({"app.kubernetes.io/component": "front"})),
    ("no ConfigMap", lambda m: pod(m, "forepack-worker")["volumes"][0]["configMap"].update(name="forepack-worker")),
    ("no volume", lambda m: container(m, "forepack-router")["volumeMounts"][0].update(name="konfig")),
    ("nothing mounts", lambda m: pod(m, "forepack-router")["volumes"].append({"name": "spare", "emptyDir": {}})),
    ("no ServiceAccount", lambda m: pod(m, "forepack-router").update(serviceAccountName="default-account")),
    ("no PriorityClass", lambda m: pod(m, "forepack-worker").update(priorityClassName="high")),
    ("nothing is mounted", lambda m: container(m, "forepack-router")["args"].append("--api-keys=/etc/keys")),
    ("nobody fills", lambda m: edit_config(m, "router.conf", "model = /", "model = /models/other #")),
    ("enableServiceLinks", lambda m: pod(m, "forepack-speculator").pop("enableServiceLinks")),
    ("runs as root", lambda m: pod(m, "forepack-router")["securityContext"].update(runAsUser=0)),
    ("root file system", lambda m: container(m, "forepack-worker")["securityContext"].pop("readOnlyRootFilesystem")),
    ("has capabilities", lambda m: container(m, "forepack-worker")["securityContext"].pop("capabilities")),
    ("no readinessProbe", lambda m: container(m, "forepack-speculator").pop("readinessProbe")),
    ("limit of memory", lambda m: container(m, "forepack-router")["resources"].pop("limits")),
    ("shorter than the drain", lambda m: pod(m, "forepack-router").update(terminationGracePeriodSeconds=30)),
    ("too short", lambda m: pod(m, "forepack-worker").pop("terminationGracePeriodSeconds")),
    ("/dev/shm", lambda m: pod(m, "forepack-worker")["volumes"][2].update(emptyDir={})),
    ("reaches the node port", lambda m: policy(m, "forepack-router")["ingress"][1].pop("from")),
    ("reaches the node port", lambda m: policy(m, "forepack-router")["ingress"][0].pop("ports")),
    ("cannot reach the node port", lambda m: policy(m, "forepack-router")["ingress"].pop()),
    ("has no port", lambda m: policy(m, "forepack-router")["ingress"][1]["ports"][0].update(port="node")),
    ("selects no pod", lambda m: m.find("PodDisruptionBudget", "forepack-worker")["spec"]["selector"].update(
        matchLabels={"app": "worker"})),
    ("Additional properties", lambda m: m.find("LeaderWorkerSet", "forepack-worker")["spec"].update(size=2)),
    ("is not one of", lambda m: m.find("LeaderWorkerSet", "forepack-worker")["spec"]["leaderWorkerTemplate"].update(
        restartPolicy="Always")),
    ("may all be on one host", lambda m: pod(m, "forepack-worker").pop("topologySpreadConstraints")),
]

# Faults of objects that only the overlays for GPUs have.
LARGE_FAULTS = [
    ("nobody makes the Secret", lambda m: pod(m, "forepack-router")["volumes"][-1]["secret"].update(secretName="keys")),
    ("mode 0440", lambda m: pod(m, "forepack-router")["volumes"][-1]["secret"].update(defaultMode=0o444)),
    ("has no key", lambda m: container(m, "forepack-router")["args"].append("--api-keys=/etc/forepack/api-keys/key")),
    ("not pinned", lambda m: edit_config(m, "models.txt", "0e9e39f249a16976918f6564b8830bc894c89659", "main")),
    ("nobody fills", lambda m: edit_config(m, "models.txt", "speculator ", "small      ")),
    ("no certificate", lambda m: m.find("Certificate", "forepack-router-node-tls")["spec"].update(dnsNames=["router"])),
    ("no Issuer", lambda m: m.find("Certificate", "forepack-node-tls")["spec"]["issuerRef"].update(name="nodes")),
    ("nobody makes the authority", lambda m: m.find("Certificate", "forepack-nodes-ca")["spec"].update(isCA=False)),
    ("there is no LeaderWorkerSet", lambda m: m.find("ScaledObject", "forepack-worker")["spec"]["scaleTargetRef"].update(
        name="workers")),
    ("threshold", lambda m: m.find("ScaledObject", "forepack-worker")["spec"]["triggers"][0]["metadata"].pop("threshold")),
    ("no port", lambda m: m.find("ServiceMonitor", "forepack-router")["spec"]["endpoints"][0].update(port="metrics")),
    ("which the alert rules expect", lambda m: m.find("ServiceMonitor", "forepack-router")["spec"].update(
        jobLabel="app.kubernetes.io/component")),
    ("with the key", lambda m: m.find("ServiceMonitor", "forepack-router")["spec"]["endpoints"][0]["authorization"][
        "credentials"].update(key="operator")),
    ("not each pod has a port", lambda m: m.find("PodMonitor", "forepack-nodes")["spec"]["podMetricsEndpoints"][0].update(
        port="metrics")),
    ("does not match", lambda m: m.find("PrometheusRule", "forepack")["spec"]["groups"][0]["rules"][0].update(
        {"for": "1 minute"})),
]
