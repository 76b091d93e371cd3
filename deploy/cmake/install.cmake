# Installation: `cmake --install build/release --prefix DIR`. deploy/debian/build.sh makes packages of it.
include(GNUInstallDirs)

# Installed programs look for the CUDA backend and the demo models relative to their own folder, so a tree can be moved.
file(RELATIVE_PATH FOREPACK_BIN_TO_LIBRARIES ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/forepack)
file(RELATIVE_PATH FOREPACK_BIN_TO_DATA ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR}/forepack)
configure_file(${CMAKE_SOURCE_DIR}/lib/base/version.h.in ${CMAKE_BINARY_DIR}/generated/lib/base/version.h @ONLY)

install(DIRECTORY deploy/demo-model DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack
        PATTERN "*.py" EXCLUDE)
install(DIRECTORY bench/shapes DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack)
install(DIRECTORY proto/forepack proto/inference DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack/proto)
install(PROGRAMS deploy/certificates.sh deploy/llguidance.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack)
install(FILES deploy/llguidance.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack)
# llguidance, if deploy/llguidance.sh has installed it, with its licence. Otherwise that script, which is installed too,
# can install it later.
set(FOREPACK_LLGUIDANCE ${CMAKE_BINARY_DIR}/../llguidance)
install(FILES ${FOREPACK_LLGUIDANCE}/libllguidance.so DESTINATION ${CMAKE_INSTALL_LIBDIR}/forepack OPTIONAL)
install(FILES ${FOREPACK_LLGUIDANCE}/llguidance.LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(DIRECTORY deploy/systemd deploy/monitoring deploy/proxy deploy/kubernetes deploy/containers deploy/slurm deploy/chaos
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md CHANGELOG.md SECURITY.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Where bash, zsh and fish look for them. bash finds a file by the name of the program.
function(forepack_completions)
  set(folder ${CMAKE_BINARY_DIR}/completion)
  foreach(pair bash:bash-completion/completions/forepack zsh:zsh/vendor-completions/_forepack
          fish:fish/vendor_completions.d/forepack.fish)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 shell)
    list(GET pair 1 file)
    get_filename_component(parent ${folder}/${file} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    list(APPEND scripts ${folder}/${file})
    list(APPEND commands COMMAND $<TARGET_FILE:forepack> completion ${shell} >${folder}/${file})
  endforeach()
  add_custom_command(OUTPUT ${scripts} ${commands} DEPENDS ${ARGN})
  add_custom_target(completions ALL DEPENDS ${scripts})
  foreach(program ${ARGN})
    if(NOT program STREQUAL "forepack")
      file(CREATE_LINK forepack ${folder}/bash-completion/completions/${program} SYMBOLIC)
    endif()
  endforeach()
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_DATADIR})
endfunction()

# Called when all programs are known: man pages and the completion of shells, from their option tables.
function(forepack_man_pages)
  get_property(programs GLOBAL PROPERTY FOREPACK_PROGRAMS)
  foreach(program ${programs})
    list(APPEND files $<TARGET_FILE:${program}>)
  endforeach()
  set(folder ${CMAKE_BINARY_DIR}/man)
  add_custom_command(
    OUTPUT ${folder}/stamp
    COMMAND ${CMAKE_SOURCE_DIR}/deploy/cmake/man_pages.sh ${folder} ${files}
    COMMAND ${CMAKE_COMMAND} -E touch ${folder}/stamp
    DEPENDS ${programs} ${CMAKE_SOURCE_DIR}/deploy/cmake/man_pages.sh VERBATIM)
  add_custom_target(man_pages ALL DEPENDS ${folder}/stamp)
  forepack_completions(${programs})
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN *.1.gz)
endfunction()
