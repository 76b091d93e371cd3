# Copies IN to OUT for protoc-c, with the texts that clients write (prompts, chat turns, stop strings) and that models
# answer as `bytes` instead of `string`. The wire format is the same, but protobuf-c makes a C string of a `string`:
# U+0000 is valid in a prompt and would cut it short. Length-counted bytes carry it, and our own check of the UTF-8
# (which protobuf-c does not do either) sees all of it.
file(READ ${IN} text)
if(text MATCHES "package forepack\\.v1;")
  string(REGEX REPLACE "(\n *(repeated )?)string (text|content|stop) = " "\\1bytes \\3 = " text "${text}")
endif()
file(WRITE ${OUT} "${text}")
