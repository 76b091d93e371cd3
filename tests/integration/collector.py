# SPDX-License-Identifier: Apache-2.0
"""An OpenTelemetry collector that writes the spans it gets to a file, one JSON object in a line.

Usage: collector.py HOST:PORT SPANS.jsonl [CERT.pem KEY.pem]
"""
import json
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp

address, path = sys.argv[1:3]
lock = threading.Lock()


def value_of(value):
    kind = value.WhichOneof("value")
    plain = getattr(value, kind)
    return [value_of(v) for v in plain.values] if kind == "array_value" else plain


def attributes_of(message):
    values = {a.key: value_of(a.value) for a in message.attributes}
    assert len(values) == len(message.attributes), message
    return values


def row_of(span, resource, scope, key):
    return {"trace": span.trace_id.hex(), "span": span.span_id.hex(), "parent": span.parent_span_id.hex(),
            "state": span.trace_state, "name": span.name, "kind": span.kind, "start": span.start_time_unix_nano,
            "end": span.end_time_unix_nano, "status": MessageToDict(span.status), "flags": span.flags,
            "attributes": attributes_of(span), "resource": resource, "scope": scope, "key": key}


def export(data, context):
    request = otlp.ExportTraceServiceRequest.FromString(data)
    key = dict(context.invocation_metadata()).get("x-key")
    with lock, open(path, "a") as out:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    row = row_of(span, attributes_of(resource.resource), scope.scope.name, key)
                    out.write(json.dumps(row) + "\n")
    return otlp.ExportTraceServiceResponse().SerializeToString()


handler = grpc.unary_unary_rpc_method_handler(export)
service = "opentelemetry.proto.collector.trace.v1.TraceService"
server = grpc.server(futures.ThreadPoolExecutor(2))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
if len(sys.argv) > 3:
    cert, key = (open(name, "rb").read() for name in sys.argv[3:5])
    server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)]))
else:
    server.add_insecure_port(address)
server.start()
server.wait_for_termination()
