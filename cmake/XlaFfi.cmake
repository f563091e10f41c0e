# XLA_FFI_INCLUDE_DIR: the headers of XLA's FFI in the jaxlib of the Python environment that builds. A handler is refused
# by a runtime whose FFI is older than these headers, which is why pyproject.toml asks for an old jaxlib.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import importlib.util as u; s = u.find_spec('jaxlib'); print(*(s.submodule_search_locations if s else []))"
  OUTPUT_VARIABLE jaxlib
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(XLA_FFI_INCLUDE_DIR ${jaxlib}/include)
if(NOT jaxlib OR NOT EXISTS ${XLA_FFI_INCLUDE_DIR}/xla/ffi/api/ffi.h)
  message(FATAL_ERROR "No jaxlib with XLA's FFI headers in the environment of ${Python_EXECUTABLE}. Leave out "
                      "--no-build-isolation, or pip install jaxlib.")
endif()
file(STRINGS ${XLA_FFI_INCLUDE_DIR}/xla/ffi/api/c_api.h minor REGEX "^#define XLA_FFI_API_MINOR ")
string(REGEX REPLACE ".* " "" minor "${minor}")
message(STATUS "XLA FFI headers: ${XLA_FFI_INCLUDE_DIR} (API minor ${minor})")
