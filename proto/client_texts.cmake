# Copies IN to OUT for protoc-c and turns the texts of clients and models (prompts, chat turns, stop strings, answers) from
# `string` into `bytes`. The wire format is the same, but protobuf-c turns a `string` into a C string, which ends at U+0000,
# a valid character of a prompt. Bytes carry their length, so the router's UTF-8 check sees all of them.
file(READ ${IN} text)
if(text MATCHES "package forepack\\.v1;")
  string(REGEX REPLACE "(\n *(repeated )?)string (text|content|stop) = " "\\1bytes \\3 = " text "${text}")
endif()
file(WRITE ${OUT} "${text}")
