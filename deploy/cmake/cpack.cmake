# CPack reads this file once per generator. Archives have a top-level folder; Debian packages must not have one.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY OFF)
endif()
