# CMake functions and settings that the CMakeLists.txt of every folder uses.

set(FOREPACK_WARNINGS -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
    -Wvla -Wno-unused-parameter)

# Hardening of all code except the CPU kernels (kernels/CMakeLists.txt gives the reason). _FORTIFY_SOURCE needs an
# optimised build, and the sanitizers bring checks of the same functions. Level 3 needs GCC 12 and glibc 2.34.
# tests/hardening.sh checks what was built.
set(FOREPACK_HARDENING -fPIE -fstack-protector-strong -fstack-clash-protection)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND FOREPACK_HARDENING -fcf-protection)
endif()
if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT CMAKE_C_FLAGS MATCHES "sanitize")
  include(CheckCSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_c_source_compiles("#include <string.h>\nint main(void) { return 0; }" FOREPACK_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  list(APPEND FOREPACK_HARDENING -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$<IF:$<BOOL:${FOREPACK_FORTIFY_3}>,3,2>)
endif()
add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)

# For kernels: leaves out UndefinedBehaviorSanitizer's checks at each access of memory, which double the compile time.
# AddressSanitizer checks these accesses, too.
set(FOREPACK_FEWER_CHECKS $<$<CONFIG:Debug>:-fno-sanitize=null,object-size,pointer-overflow>)

# forepack_library(NAME sources... LINK libraries...): a static library.
function(forepack_library name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
  target_compile_definitions(${name} PUBLIC _GNU_SOURCE)
  target_compile_options(${name} PRIVATE ${FOREPACK_WARNINGS} ${FOREPACK_HARDENING})
  target_link_libraries(${name} PUBLIC ${arg_LINK})
endfunction()

# The commit in `--version`. Programs alone contain it, so that a commit does not link the tests again. -DFOREPACK_COMMIT=ID
# is for sources without git.
set(FOREPACK_COMMIT "" CACHE STRING "Commit of sources that are not a clone")
add_custom_target(forepack_commit_file
                  COMMAND ${CMAKE_COMMAND} -D SOURCE=${CMAKE_SOURCE_DIR} -D FILE=${CMAKE_BINARY_DIR}/generated/build_commit.c
                          -D COMMIT=${FOREPACK_COMMIT} -P ${CMAKE_SOURCE_DIR}/deploy/cmake/commit.cmake
                  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/build_commit.c VERBATIM)
add_library(forepack_commit OBJECT ${CMAKE_BINARY_DIR}/generated/build_commit.c)
target_include_directories(forepack_commit PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_compile_options(forepack_commit PRIVATE ${FOREPACK_WARNINGS} ${FOREPACK_HARDENING})
add_dependencies(forepack_commit forepack_commit_file)

# forepack_program(NAME sources... LINK libraries...): a program in build/<preset>/bin, and in bin once installed.
function(forepack_program name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_compile_options(${name} PRIVATE ${FOREPACK_WARNINGS} ${FOREPACK_HARDENING})
  target_link_libraries(${name} PRIVATE ${arg_LINK} forepack_commit)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT forepack)
  set_property(GLOBAL APPEND PROPERTY FOREPACK_PROGRAMS ${name})
endfunction()

# forepack_loads_cuda(NAME): for programs that compute. The CUDA backend is a module which calls functions of the program
# that loads it (kernels/module.h), so the program must contain all of these libraries, even if it calls no function of
# them.
function(forepack_loads_cuda name)
  if(FOREPACK_CUDA)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:forepack_base> $<TARGET_OBJECTS:forepack_kernels>)
    set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  endif()
endfunction()

# Large test data (real models, prompts, traces). Tests that need it are skipped (exit code 77) if it is absent.
set(FOREPACK_DATA ${CMAKE_SOURCE_DIR}/../shared/data CACHE PATH "Folder of the test data outside the repository")

# Environment of every test. The sanitizers suppress leaks in Open MPI's plugins only.
set(FOREPACK_TEST_ENVIRONMENT
    "ASAN_OPTIONS=fast_unwind_on_malloc=0:detect_leaks=1"
    "LSAN_OPTIONS=suppressions='${CMAKE_SOURCE_DIR}/tests/lsan.supp':print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
    "TSAN_OPTIONS=suppressions='${CMAKE_SOURCE_DIR}/tests/tsan.supp'"
    "CK_TIMEOUT_MULTIPLIER=60"
    "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    "OMPI_MCA_mpi_yield_when_idle=1" "OMPI_MCA_btl_vader_single_copy_mechanism=none"
    "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache"
    "FOREPACK_DATA=${FOREPACK_DATA}"
    "FOREPACK_SOURCE=${CMAKE_SOURCE_DIR}"
    "FOREPACK_BIN=${CMAKE_BINARY_DIR}/bin")

# The libraries that every test program links in addition to its own.
if(FOREPACK_TESTS)
  add_library(forepack_check OBJECT ${CMAKE_SOURCE_DIR}/tests/suite.c ${CMAKE_SOURCE_DIR}/tests/marks.c)
  target_include_directories(forepack_check PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(forepack_check PRIVATE ${FOREPACK_WARNINGS})
  target_link_libraries(forepack_check PUBLIC PkgConfig::CHECK)
  target_link_options(forepack_check INTERFACE -Wl,--wrap=_mark_point)
endif()

# The longest tests in descending order: CTest starts them in this order, so that no core is idle at the end.
set(FOREPACK_LONG_TESTS
    check_golden_data_cuda check_golden_data_reference check_scorer check_scheduler check_golden_cuda check_model_forward
    check_row_sampling_cuda check_cuda_backend check_golden_reference check_cuda_sample check_engine check_cuda_exactness
    check_cuda_attention check_fp8_blocks check_exactness_amx check_scan_cost check_net check_net_tls check_kernels_cuda
    check_cuda_comm check_golden_cpu check_tokenizer_files check_perplexity)

# forepack_test_order(TESTS...): sets the COST of the long tests.
function(forepack_test_order)
  list(LENGTH FOREPACK_LONG_TESTS count)
  foreach(test ${ARGN})
    list(FIND FOREPACK_LONG_TESTS ${test} place)
    if(NOT place EQUAL -1)
      math(EXPR cost "1000 + ${count} - ${place}")
      set_tests_properties(${test} PROPERTIES COST ${cost})
    endif()
  endforeach()
endfunction()

# Optimisation can change results of computing code. So a release build has the unit tests that link this, and other unit tests
# only with FOREPACK_ALL_TESTS. They run in the build `dev`.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(FOREPACK_ALL_TESTS ON)
else()
  option(FOREPACK_ALL_TESTS "Release builds: all unit tests, instead of those of computation" OFF)
endif()
set(FOREPACK_COMPUTING "forepack_(kernels|model|engine|worker|speculator)|tiny_model")

# forepack_test(NAME [SOURCES extra...] [RANKS n | EACH words...] [DATA] [TIMEOUT seconds] [CUDA] LIBS libraries...)
# builds tests/NAME.c (or .cpp) with Check and adds it to CTest with the label `unit`. Exit code 77 means skipped.
#   RANKS  runs it under mpirun, with no other test at the same time: ranks that wait for a core run into their time limits
#   EACH   adds one test for each word, NAME_WORD, with the word as the argument of the program
#   DATA   adds NAME_data (with EACH: NAME_data_WORD), which tests with FOREPACK_DATA; its last argument is "data"
#   CUDA   links the CUDA backend on the emulated GPU, if its headers are installed: tests named check_cuda_* and
#          NAME_cuda have the label `dev`. With FOREPACK_CUDA it also adds gpu_NAME (label `gpu`, argument "cuda"), which
#          runs on a GPU and is skipped if there is none
function(forepack_test name)
  if(NOT FOREPACK_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "CUDA;DATA" "RANKS;TIMEOUT" "SOURCES;EACH;LIBS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1200)
  endif()
  file(GLOB source ${CMAKE_SOURCE_DIR}/tests/${name}.c ${CMAKE_SOURCE_DIR}/tests/${name}.cpp)
  # The slow reference models are optimised and have no sanitizers: otherwise they would take most of the time.
  set(oracles ${arg_SOURCES})
  list(FILTER oracles INCLUDE REGEX "/slow_")
  set_source_files_properties(${oracles} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Debug>:-O2;-fno-sanitize=all>")
  # Most of a test's time is spent in the libraries, and it compiles four times as fast with no optimisation.
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Debug>:-O0;-g1>")
  add_executable(${name} ${source} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:C>:${FOREPACK_WARNINGS}>")
  target_link_libraries(${name} PRIVATE ${arg_LIBS} forepack_check)
  target_link_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<C_COMPILER_ID:GNU>>:-fno-lto>) # router/CMakeLists.txt
  if(arg_CUDA AND TARGET forepack_cuda_emulated)
    target_link_libraries(${name} PRIVATE forepack_cuda_emulated)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  if(arg_CUDA AND FOREPACK_CUDA)
    add_executable(${name}_gpu ${source} ${arg_SOURCES})
    target_compile_options(${name}_gpu PRIVATE "$<$<COMPILE_LANGUAGE:C>:${FOREPACK_WARNINGS}>")
    target_compile_definitions(${name}_gpu PRIVATE FOREPACK_TEST_CUDA)
    # Some tests reach the backend only by a weak symbol (kernels/module.c).
    target_link_libraries(${name}_gpu PRIVATE -Wl,--no-as-needed forepack_cuda_tested -Wl,--as-needed ${arg_LIBS} forepack_check)
    set_target_properties(${name}_gpu PROPERTIES LINKER_LANGUAGE CXX)
    add_test(NAME gpu_${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/on_gpu.sh $<TARGET_FILE:${name}_gpu> cuda)
    set_tests_properties(gpu_${name} PROPERTIES LABELS gpu)
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests) # the programs of `ctest -L gpu`
    endif()
    add_dependencies(gpu_tests ${name}_gpu)
    list(APPEND tests gpu_${name})
  endif()
  if(NOT FOREPACK_ALL_TESTS AND (name MATCHES "^check_cuda_" OR NOT "${arg_LIBS} ${arg_SOURCES}" MATCHES "${FOREPACK_COMPUTING}"))
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  elseif(arg_RANKS)
    add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${arg_RANKS} --oversubscribe
             --bind-to none $<TARGET_FILE:${name}>)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
    list(APPEND unit_tests ${name})
  elseif(arg_EACH)
    foreach(word ${arg_EACH})
      add_test(NAME ${name}_${word} COMMAND ${name} ${word})
      list(APPEND unit_tests ${name}_${word})
      if(arg_DATA)
        add_test(NAME ${name}_data_${word} COMMAND ${name} ${word} data)
        list(APPEND unit_tests ${name}_data_${word})
      endif()
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    list(APPEND unit_tests ${name})
    if(arg_DATA)
      add_test(NAME ${name}_data COMMAND ${name} data)
      list(APPEND unit_tests ${name}_data)
    endif()
  endif()
  if(unit_tests)
    set_tests_properties(${unit_tests} PROPERTIES LABELS unit)
  endif()
  if(arg_CUDA OR "forepack_cuda_emulated" IN_LIST arg_LIBS)
    set(emulated ${unit_tests})
    list(FILTER emulated INCLUDE REGEX "^check_cuda_|_cuda$")
    if(emulated)
      set_tests_properties(${emulated} PROPERTIES LABELS "unit;dev")
    endif()
  endif()
  forepack_test_order(${unit_tests})
  set(environment "${FOREPACK_TEST_ENVIRONMENT}")
  if(NOT name MATCHES "engine|speculator|^check_(cuda_comm|node|node_drain|node_hello)$")
    # Suppressions of leaks in Open MPI's plugins need whole stacks, which take half of the time of tests that allocate much.
    list(TRANSFORM environment REPLACE "fast_unwind_on_malloc=0:" "")
  endif()
  if(tests OR unit_tests)
    set_tests_properties(${tests} ${unit_tests} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${arg_TIMEOUT}
                         ENVIRONMENT "${environment}")
  endif()
endfunction()
