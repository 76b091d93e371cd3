# forepack_text: tokenizer, streaming text and chat templates, without tensors. The router links only this library.
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

forepack_library(forepack_text
  unicode.c text_span.c json_members.c pattern.c normalizer.c added_tokens.c bpe.c
  tokenizer_open.c tokenizer_config.c tokenizer_kinds.c tokenizer_model.c tokenizer_derived.c tokenizer_encode.c tokenizer_decode.c
  text_stream.c chat.c chat_pinned.c chat_turns.c tail_search.c chat_template.c call_reader.c output_parser.c tool_grammar.c
  LINK forepack_config forepack_jinja forepack_base PkgConfig::PCRE2 PkgConfig::JANSSON PkgConfig::UTF8PROC)

forepack_test(check_tokenizer DATA SOURCES ${CMAKE_SOURCE_DIR}/tests/text_data.c LIBS forepack_text)
forepack_test(check_tokenizer_files SOURCES ${CMAKE_SOURCE_DIR}/tests/text_data.c LIBS forepack_text)
forepack_test(check_tokenizer_config SOURCES ${CMAKE_SOURCE_DIR}/tests/text_data.c LIBS forepack_text)
forepack_test(check_text_stream DATA SOURCES ${CMAKE_SOURCE_DIR}/tests/text_data.c LIBS forepack_text)
forepack_test(check_output_parser DATA SOURCES ${CMAKE_SOURCE_DIR}/tests/text_data.c LIBS forepack_text)
forepack_test(check_tail_search SOURCES ${CMAKE_SOURCE_DIR}/tests/text_data.c LIBS forepack_text)
forepack_test(check_chat DATA SOURCES ${CMAKE_SOURCE_DIR}/tests/text_data.c LIBS forepack_text)
