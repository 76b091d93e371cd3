# Fuzz targets, with clang's libFuzzer:
#   cmake -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DFOREPACK_FUZZ=ON
#   cmake --build build/fuzz --target fuzz_http && build/fuzz/bin/fuzz_http -max_total_time=600 FOUND tests/fuzz/corpus/fuzz_http
# New inputs go to the folder FOUND, which must exist. Builds without FOREPACK_FUZZ replay the corpus as a unit test.
option(FOREPACK_FUZZ "Build the fuzz targets with libFuzzer; needs clang" OFF)
if(FOREPACK_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "FOREPACK_FUZZ needs clang: configure a new build folder with -DCMAKE_C_COMPILER=clang")
  endif()
  add_compile_options(-O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

# forepack_fuzz(NAME [SOURCES extra...] LIBS libraries...): tests/fuzz/NAME.c with the seeds tests/fuzz/corpus/NAME/*.
function(forepack_fuzz name)
  if(NOT FOREPACK_FUZZ AND NOT FOREPACK_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  set(folder ${CMAKE_SOURCE_DIR}/tests/fuzz)
  if(NOT FOREPACK_FUZZ)
    list(APPEND arg_SOURCES ${folder}/replay.c)
  endif()
  add_executable(${name} ${folder}/${name}.c ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${FOREPACK_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  if(FOREPACK_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_test(NAME ${name} COMMAND ${name} ${folder}/corpus/${name})
    set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 1200 ENVIRONMENT "${FOREPACK_TEST_ENVIRONMENT}")
  endif()
endfunction()
