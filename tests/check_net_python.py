#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the server of lib/net/ with Google's Python client: reflection, health, statuses, metadata, compression (refused).

usage: check_net_python.py NET_SERVER PROTO_FOLDER      (exit 77: skipped)
"""
import concurrent.futures
import importlib
import os
import subprocess
import sys
import tempfile

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    print(f"skipped: {error} (python3-grpcio and python3-protobuf are needed)")
    sys.exit(77)

checks = 0
WAIT = 600  # seconds, the limit of every call


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        raise AssertionError(what)


def check_equal(got, wanted, what):
    check(got == wanted, f"{what}: got {got!r}, wanted {wanted!r}")


def generated(proto, *files):
    """The Python modules of some .proto files."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["protoc", f"-I{proto}", f"--python_out={folder}", *files], check=True)
        sys.path.insert(0, folder)
        return [importlib.import_module(f[:-6].replace("/", ".") + "_pb2") for f in files]


def reflected(channel, messages, version):
    """The descriptor pool and the names of all services, by reflection alone."""
    info = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=messages.ServerReflectionRequest.SerializeToString,
        response_deserializer=messages.ServerReflectionResponse.FromString)
    Request = messages.ServerReflectionRequest

    answer = next(info(iter([Request(host="h", list_services="")]), timeout=WAIT))
    check_equal(answer.valid_host, "h", "host is echoed")
    check_equal(answer.original_request.WhichOneof("message_request"), "list_services", "request is echoed")
    services = [s.name for s in answer.list_services_response.service]

    questions = [Request(file_containing_symbol=s) for s in services]
    questions += [Request(file_by_filename="no/such.proto"), Request(file_containing_symbol="no.such.Symbol"),
                  Request(all_extension_numbers_of_type="forepack.v1.Chunk"), Request()]
    answers = list(info(iter(questions), timeout=WAIT))
    check_equal(len(answers), len(questions), "one answer per question")
    pool = descriptor_pool.DescriptorPool()
    for answer in answers[:len(services)]:
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            pool.AddSerializedFile(serialized)
    check_equal([a.error_response.error_code for a in answers[-4:]], [5, 5, 0, 3], "errors")
    check_equal(answers[-2].all_extension_numbers_response.base_type_name, "forepack.v1.Chunk", "extensions")
    return pool, services


def method(channel, pool, service, name):
    """A callable for a method and its request class, from the reflected description."""
    described = pool.FindServiceByName(service).FindMethodByName(name)
    factory = message_factory.MessageFactory(pool)
    request, response = (factory.GetPrototype(t) for t in (described.input_type, described.output_type))
    proto = descriptor_pb2.MethodDescriptorProto()
    described.CopyToProto(proto)
    kind = ("stream" if proto.client_streaming else "unary") + "_" + ("stream" if proto.server_streaming else "unary")
    call = getattr(channel, kind)(f"/{service}/{name}", request_serializer=request.SerializeToString,
                                  response_deserializer=response.FromString)
    return call, request


def expect_failure(code, call):
    try:
        call()
    except grpc.RpcError as error:
        check_equal(error.code(), code, "status")
        return error
    raise AssertionError(f"{code} was expected, but the call succeeded")


def check_reflection_and_calls(channel, v1, v1alpha):
    pool, services = reflected(channel, v1alpha, "v1alpha")
    check_equal(services, ["forepack.v1.Inference", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                           "grpc.reflection.v1alpha.ServerReflection"], "services")
    check_equal(reflected(channel, v1, "v1")[1], services, "services by v1")

    tokenize, Request = method(channel, pool, "forepack.v1.Inference", "Tokenize")
    field = Request.DESCRIPTOR.fields_by_name["text"]
    check_equal(field.type, field.TYPE_STRING, "clients see texts as string")
    text = "a\0b caf\u00e9 \U0001f600"
    answer = tokenize(Request(text=text), timeout=WAIT)
    check_equal(bytes(answer.token_ids), text.encode(), "text arrives whole, NUL and all")
    text = "x" * 6_000_000  # request and answer (1 byte per token) are over gRPC's default limit of 4 MB
    check_equal(len(tokenize(Request(text=text), timeout=WAIT).token_ids), len(text), "large message")

    many, Request = method(channel, pool, "forepack.v1.Inference", "GenerateMany")
    error = expect_failure(grpc.StatusCode.UNAUTHENTICATED, lambda: list(many(iter([Request()]), timeout=WAIT)))
    check_equal(error.details(), "caf\u00e9: 100% token", "details")
    check_equal(dict(error.trailing_metadata()).get("retry-after-ms"), "250", "trailer")
    requests = [Request(request_id=str(i)) for i in range(1000)]
    answers = list(many(iter(requests), timeout=WAIT, metadata=[("authorization", "Bearer secret")]))
    check_equal([a.request_id for a in answers], [r.request_id for r in requests], "order")

    silent, Request = method(channel, pool, "forepack.v1.Inference", "Detokenize")
    expect_failure(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: silent(Request(), timeout=0.2))
    absent, Request = method(channel, pool, "forepack.v1.Inference", "Abort")
    error = expect_failure(grpc.StatusCode.UNIMPLEMENTED, lambda: absent(Request(), timeout=WAIT))
    check("/forepack.v1.Inference/Abort" in error.details(), error.details())


def check_compression(port, server, tell):
    """Compressed messages are refused on both sides before they are decompressed: 64 KiB may stand for 64 MiB."""
    def memory_mib():
        with open(f"/proc/{server.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) >> 10

    zeros = bytes(60 << 20)
    before = memory_mib()
    options = [("grpc.enable_http_proxy", 0)]
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        for message in (b"", b"\x0a\x05hello", zeros):
            with grpc.insecure_channel(f"127.0.0.1:{port}", options=options, compression=compression) as channel:
                call = channel.unary_unary("/forepack.v1.Inference/Tokenize")
                error = expect_failure(grpc.StatusCode.UNIMPLEMENTED, lambda: call(message, timeout=WAIT))
                check("compression" in error.details().lower(), error.details())
    check(memory_mib() < before + 16, f"the server decompressed: {before} MiB before, {memory_mib()} MiB after")

    handler = grpc.method_handlers_generic_handler("forepack.v1.Inference", {
        "Tokenize": grpc.unary_unary_rpc_method_handler(lambda request, context: zeros)})
    bomber = grpc.server(concurrent.futures.ThreadPoolExecutor(1), [handler], compression=grpc.Compression.Gzip)
    bomber_port = bomber.add_insecure_port("127.0.0.1:0")
    bomber.start()
    before = memory_mib()
    tell(f"call 127.0.0.1:{bomber_port}")
    status, size, message = server.stdout.readline().rstrip("\n").split(" ", 2)
    check_equal(size, "0", "bytes of a compressed answer")
    check_equal(status, "unsupported", "status of a compressed answer")
    check("compression" in message.lower(), message)
    check(memory_mib() < before + 16, f"the client decompressed: {before} MiB before, {memory_mib()} MiB after")
    bomber.stop(None).wait(WAIT)


def check_health(channel, health, tell):
    def call(kind, name):
        return getattr(channel, kind)(f"/grpc.health.v1.Health/{name}",
                                      request_serializer=health.HealthCheckRequest.SerializeToString,
                                      response_deserializer=health.HealthCheckResponse.FromString)
    ask, watch = call("unary_unary", "Check"), call("unary_stream", "Watch")
    Request, Response = health.HealthCheckRequest, health.HealthCheckResponse
    name = "forepack.v1.Inference"
    check_equal(ask(Request(), timeout=WAIT).status, Response.NOT_SERVING, "server before")
    check_equal(ask(Request(service=name), timeout=WAIT).status, Response.NOT_SERVING, "service before")
    expect_failure(grpc.StatusCode.NOT_FOUND, lambda: ask(Request(service="nothing"), timeout=WAIT))

    known = watch(Request(service=name), timeout=WAIT)
    unknown = watch(Request(service="later"), timeout=WAIT)
    check_equal(next(known).status, Response.NOT_SERVING, "first state")
    check_equal(next(unknown).status, Response.SERVICE_UNKNOWN, "unknown service")
    tell(f"serving {name}")
    check_equal(next(known).status, Response.SERVING, "change")
    check_equal(ask(Request(service=name), timeout=WAIT).status, Response.SERVING, "service after")
    tell("serving later")
    check_equal(next(unknown).status, Response.SERVING, "service that came later")
    tell(f"stopped {name}")
    check_equal(next(known).status, Response.NOT_SERVING, "change back")
    unknown.cancel()
    return known


def main():
    program, proto = sys.argv[1:]
    v1, v1alpha, health = generated(proto, "grpc_reflection/v1/reflection.proto",
                                    "grpc_reflection/v1alpha/reflection.proto", "grpc_health/v1/health.proto")
    server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(line):
        server.stdin.write(line + "\n")
        server.stdin.flush()

    try:
        port = int(server.stdout.readline().split()[1])
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            check_reflection_and_calls(channel, v1, v1alpha)
            check_compression(port, server, tell)
            watcher = check_health(channel, health, tell)
            server.stdin.close()  # the server closes, which ends the watcher at once
            expect_failure(grpc.StatusCode.UNAVAILABLE, lambda: list(watcher))
        check_equal(server.wait(WAIT), 0, "the server's exit code")
    finally:
        if server.poll() is None:
            server.kill()
    print(f"{checks} checks passed")


if __name__ == "__main__":
    os.environ.pop("GRPC_VERBOSITY", None)
    main()
