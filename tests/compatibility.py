#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the protocols with those of earlier releases (tests/data/release-*), and reads recorded messages.

  protocol.txt      each line is a field, enum value or method of a release: it must still exist, with the same number and
                    type, so that programs of that release understand each other and this one
  messages/*.pb     messages of that release: protoc must read them as messages/*.txt says

Usage: tests/compatibility.py [--record FOLDER]
  --record FOLDER   writes protocol.txt of the present protocols into FOLDER, and *.pb of each messages/*.txt
Exit codes: 0 compatible, 1 findings, each on a line. Needs protoc and Debian's
python3-protobuf."""
import glob
import os
import subprocess
import sys

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FieldType, FieldLabel = FieldDescriptorProto.Type, FieldDescriptorProto.Label
PROTO = os.path.join(ROOT, "proto")
FILES = ("forepack/v1/inference.proto", "forepack/cluster/v1/cluster.proto", "inference/kserve.proto")


def protoc(*arguments, data=b""):
    run = subprocess.run(["protoc", "-I", PROTO, *arguments], input=data, capture_output=True, check=False)
    if run.returncode != 0:
        raise ValueError(run.stderr.decode().strip())
    return run.stdout


def message_lines(message, scope):
    name = f"{scope}.{message.name}"
    for field in message.field:
        kind = field.type_name.lstrip(".") or FieldType.Name(field.type)[len("TYPE_"):].lower()
        label = FieldLabel.Name(field.label)[len("LABEL_"):].lower()
        oneof = f" in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        yield f"{name}.{field.name} = {field.number} {label} {kind}{oneof}"
    for nested in message.nested_type:
        yield from message_lines(nested, name)
    for enum in message.enum_type:
        yield from enum_lines(enum, name)


def enum_lines(enum, scope):
    for value in enum.value:
        yield f"{scope}.{enum.name}: {value.name} = {value.number}"


def protocol_lines():
    """Returns a line for each field, enum value and method of the protocols."""
    lines = []
    for file in FileDescriptorSet.FromString(protoc("--descriptor_set_out=/dev/stdout", *FILES)).file:
        for message in file.message_type:
            lines += message_lines(message, file.package)
        for enum in file.enum_type:
            lines += enum_lines(enum, file.package)
        for service in file.service:
            for method in service.method:
                asked = "stream " * method.client_streaming + method.input_type[1:]
                answered = "stream " * method.server_streaming + method.output_type[1:]
                lines.append(f"{file.package}.{service.name}/{method.name} {asked} -> {answered}")
    return sorted(lines)


def message_type(path):
    """The name of a recorded message begins with its type: forepack.v1.GenerateRequest-text.pb."""
    kind = os.path.basename(path).split("-")[0]
    return kind, FILES[1] if ".cluster." in kind else FILES[2] if kind.startswith("inference.") else FILES[0]


def record(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "protocol.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(protocol_lines()) + "\n")
    for path in glob.glob(os.path.join(folder, "messages", "*.txt")):
        kind, proto = message_type(path)
        with open(path, "rb") as text, open(path[:-3] + "pb", "wb") as out:
            out.write(protoc("--deterministic_output", "--encode=" + kind, proto, data=text.read()))


def findings():
    present = set(protocol_lines())
    releases = sorted(glob.glob(os.path.join(ROOT, "tests/data/release-*")))
    if not releases:
        yield "tests/data has no release"
    for release in releases:
        name = os.path.basename(release)
        with open(os.path.join(release, "protocol.txt"), encoding="utf-8") as file:
            for line in file.read().splitlines():
                if line not in present:
                    yield f"{name}: is gone or has changed: {line}"
        for path in sorted(glob.glob(os.path.join(release, "messages", "*.pb"))):
            kind, proto = message_type(path)
            with open(path, "rb") as file, open(path[:-2] + "txt", "rb") as text:
                try:
                    read = protoc("--decode=" + kind, proto, data=file.read())
                except ValueError as error:
                    yield f"{name}: {os.path.basename(path)}: {error}"
                    continue
                if read != text.read():
                    yield f"{name}: {os.path.basename(path)}: is read with another meaning"


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--record":
        record(sys.argv[2])
        return 0
    if len(sys.argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = list(findings())
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
