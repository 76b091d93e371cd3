# Installation and packages: `cmake --install build/release --prefix DIR`, and `cpack` for a .deb and a .tar.gz.
include(GNUInstallDirs)

# Installed programs look for the CUDA backend and the demo models relative to their own folder, so a tree can be moved.
file(RELATIVE_PATH FOREPACK_BIN_TO_LIBRARIES ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/forepack)
file(RELATIVE_PATH FOREPACK_BIN_TO_DATA ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR}/forepack)
configure_file(${CMAKE_SOURCE_DIR}/lib/base/version.h.in ${CMAKE_BINARY_DIR}/generated/lib/base/version.h @ONLY)

install(DIRECTORY deploy/demo-model DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack COMPONENT forepack
        PATTERN "*.py" EXCLUDE)
install(DIRECTORY bench/shapes DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack COMPONENT forepack)
install(DIRECTORY proto/forepack proto/inference DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack/proto COMPONENT forepack)
install(PROGRAMS deploy/certificates.sh deploy/llguidance.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack COMPONENT forepack)
install(FILES deploy/llguidance.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/forepack COMPONENT forepack)
# llguidance, if deploy/llguidance.sh has installed it, with its licence. Otherwise that script, which is installed too,
# can install it later.
set(FOREPACK_LLGUIDANCE ${CMAKE_BINARY_DIR}/../llguidance)
install(FILES ${FOREPACK_LLGUIDANCE}/libllguidance.so DESTINATION ${CMAKE_INSTALL_LIBDIR}/forepack COMPONENT forepack OPTIONAL)
install(FILES ${FOREPACK_LLGUIDANCE}/llguidance.LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT forepack OPTIONAL)
install(DIRECTORY deploy/systemd deploy/monitoring deploy/proxy
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT forepack)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT forepack)
install(FILES README.md CHANGELOG.md SECURITY.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT forepack)

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
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT forepack)
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
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT forepack FILES_MATCHING PATTERN *.1.gz)
endfunction()

set(CPACK_PACKAGE_NAME forepack)
set(CPACK_PACKAGE_VENDOR "The Forepack authors")
set(CPACK_PACKAGE_CONTACT "The Forepack authors <forepack@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_COMPONENTS_ALL forepack)
set(CPACK_PACKAGE_FILE_NAME forepack-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_ARCHIVE_FOREPACK_FILE_NAME ${CPACK_PACKAGE_FILE_NAME})
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/deploy/cmake/cpack.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_FOREPACK_PACKAGE_NAME forepack)
set(CPACK_DEBIAN_FOREPACK_PACKAGE_SHLIBDEPS ON)
# mpirun, for groups of several ranks; libpython, whose symbols libllguidance.so needs
set(CPACK_DEBIAN_FOREPACK_PACKAGE_RECOMMENDS "openmpi-bin, libpython3.11 | libpython3.12 | libpython3.13")
if(FOREPACK_CUDA)
  # A separate package: the NVIDIA libraries do not come from Debian, so it cannot name them as dependencies.
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME forepack-cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "forepack (= ${PROJECT_VERSION})")
endif()
include(CPack)
