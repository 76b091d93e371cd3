# The few verbs that every folder's CMakeLists.txt uses.

set(FOREPACK_WARNINGS -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
    -Wvla -Wno-unused-parameter)

# forepack_library(NAME sources... LINK libraries...): one static library per folder (or per half of one).
function(forepack_library name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PUBLIC _GNU_SOURCE)
  target_compile_options(${name} PRIVATE ${FOREPACK_WARNINGS})
  target_link_libraries(${name} PUBLIC ${arg_LINK})
endfunction()

# forepack_program(NAME sources... LINK libraries...): a program in build/<preset>/bin.
function(forepack_program name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_compile_options(${name} PRIVATE ${FOREPACK_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_LINK})
endfunction()

# For programs that compute: the CUDA backend is a module that calls functions of the program which loads it
# (kernels/module.h), so all of these libraries must be in it, whether it calls them itself or not.
function(forepack_loads_cuda name)
  if(FOREPACK_CUDA)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:forepack_base> $<TARGET_OBJECTS:forepack_kernels>)
    set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  endif()
endfunction()

# Sanitizer settings every test runs with: MPI's plugins leak by design, everything else is ours.
set(FOREPACK_TEST_ENVIRONMENT
    "ASAN_OPTIONS=fast_unwind_on_malloc=0:detect_leaks=1"
    "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
    "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp"
    "CK_TIMEOUT_MULTIPLIER=60"
    "OMPI_ALLOW_RUN_AS_ROOT=1" "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    "OMPI_MCA_mpi_yield_when_idle=1" "OMPI_MCA_btl_vader_single_copy_mechanism=none"
    "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache"
    "FOREPACK_DATA=${CMAKE_SOURCE_DIR}/../shared/data"
    "FOREPACK_SOURCE=${CMAKE_SOURCE_DIR}"
    "FOREPACK_BIN=${CMAKE_BINARY_DIR}/bin")

# forepack_test(NAME [SOURCES extra...] [RANKS n | EACH words...] [TIMEOUT seconds] [CUDA] LIBS libraries...): tests/NAME.c
# (or .cpp) under Check. With RANKS it runs under mpirun, alone (ranks that share cores with other tests starve). With EACH
# it is one test for each word, which is its argument; exit code 77 means that this machine cannot run it. With CUDA it has
# the CUDA backend on an emulated GPU in it, where that can be built; and where the backend itself is built the test exists
# once more as gpu_NAME, with the label gpu: its argument is cuda, and it is skipped where no GPU is.
function(forepack_test name)
  if(NOT FOREPACK_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "CUDA" "RANKS;TIMEOUT" "SOURCES;EACH;LIBS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1200)
  endif()
  file(GLOB source ${CMAKE_SOURCE_DIR}/tests/${name}.c ${CMAKE_SOURCE_DIR}/tests/${name}.cpp)
  add_executable(${name} ${source} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:C>:${FOREPACK_WARNINGS}>")
  target_link_libraries(${name} PRIVATE ${arg_LIBS} PkgConfig::CHECK)
  if(arg_CUDA AND TARGET forepack_cuda_emulated)
    target_link_libraries(${name} PRIVATE forepack_cuda_emulated)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  if(arg_CUDA AND FOREPACK_CUDA)
    add_executable(${name}_gpu ${source} ${arg_SOURCES})
    target_compile_options(${name}_gpu PRIVATE "$<$<COMPILE_LANGUAGE:C>:${FOREPACK_WARNINGS}>")
    target_compile_definitions(${name}_gpu PRIVATE FOREPACK_TEST_CUDA)
    target_link_libraries(${name}_gpu PRIVATE forepack_cuda_code ${arg_LIBS} PkgConfig::CHECK)
    set_target_properties(${name}_gpu PROPERTIES LINKER_LANGUAGE CXX)
    add_test(NAME gpu_${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/on_gpu.sh $<TARGET_FILE:${name}_gpu> cuda)
    set_tests_properties(gpu_${name} PROPERTIES LABELS gpu)
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests) # what `ctest -L gpu` runs, alone
    endif()
    add_dependencies(gpu_tests ${name}_gpu)
    list(APPEND tests gpu_${name})
  endif()
  if(arg_RANKS)
    add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${arg_RANKS} --oversubscribe
             --bind-to none $<TARGET_FILE:${name}>)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
    list(APPEND tests ${name})
  elseif(arg_EACH)
    foreach(word ${arg_EACH})
      add_test(NAME ${name}_${word} COMMAND ${name} ${word})
      list(APPEND tests ${name}_${word})
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    list(APPEND tests ${name})
  endif()
  if(arg_CUDA OR arg_EACH)
    set_tests_properties(${tests} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  set(environment "${FOREPACK_TEST_ENVIRONMENT}")
  if(NOT arg_LIBS MATCHES "engine|node|net|router|speculator|worker|bench")
    # Whole stacks are for leaks in what others link; they are half of the time of tests that allocate much.
    list(TRANSFORM environment REPLACE "fast_unwind_on_malloc=0:" "")
  endif()
  set_tests_properties(${tests} PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${environment}")
endfunction()
