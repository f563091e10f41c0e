# Chooses the CUDA compiler: -DCMAKE_CUDA_COMPILER or CUDACXX, else NVIDIA's wheels in the Python environment that builds
# (pyproject.toml asks for them), else nvcc on PATH, else the one of CUDA_HOME, CUDA_PATH or /usr/local/cuda.

# The wheels have all parts of a toolkit, but not where nvcc and CMake look for them: "lib" instead of "lib64", and no
# unversioned libcudart.so. Both are added in a copy made of symbolic links, so that site-packages stays as it is.
# nvcc finds its parts beside the path that it was called by, so that it uses the links.
function(jaxgemm_link_wheel_toolkit wheel toolkit)
  file(REMOVE_RECURSE ${toolkit})
  file(GLOB programs ${wheel}/bin/*)
  file(GLOB libraries ${wheel}/lib/*)
  file(MAKE_DIRECTORY ${toolkit}/bin ${toolkit}/lib64)
  foreach(program IN LISTS programs)
    get_filename_component(name ${program} NAME)
    file(CREATE_LINK ${program} ${toolkit}/bin/${name} SYMBOLIC)
  endforeach()
  foreach(library IN LISTS libraries)
    get_filename_component(name ${library} NAME)
    file(CREATE_LINK ${library} ${toolkit}/lib64/${name} SYMBOLIC)
    string(REGEX REPLACE "\\.so\\.[0-9]+$" ".so" unversioned ${name})
    if(NOT EXISTS ${wheel}/lib/${unversioned})
      file(CREATE_LINK ${library} ${toolkit}/lib64/${unversioned} SYMBOLIC)
    endif()
  endforeach()
  file(CREATE_LINK lib64 ${toolkit}/lib SYMBOLIC)
  file(CREATE_LINK ${wheel}/include ${toolkit}/include SYMBOLIC)
  file(CREATE_LINK ${wheel}/nvvm ${toolkit}/nvvm SYMBOLIC)
endfunction()

# The folder nvidia/cu* of the environment that holds a whole toolkit, or "". jax[cuda13] alone installs a part of one.
function(jaxgemm_find_wheel_toolkit result)
  execute_process(
    COMMAND
      ${Python_EXECUTABLE} -c
      "import importlib.util as u; s = u.find_spec('nvidia'); print(*(s.submodule_search_locations if s else []), sep=';')"
    OUTPUT_VARIABLE folders
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${result} "" PARENT_SCOPE)
  foreach(folder IN LISTS folders)
    file(GLOB wheels ${folder}/cu[0-9]*)
    foreach(wheel IN LISTS wheels)
      set(missing "")
      foreach(part bin/nvcc bin/ptxas nvvm/bin/cicc include/cuda_runtime.h include/crt/host_config.h include/cccl
                   lib/libcudart_static.a)
        if(NOT EXISTS ${wheel}/${part})
          list(APPEND missing ${part})
        endif()
      endforeach()
      if(NOT missing)
        set(${result} ${wheel} PARENT_SCOPE)
        return()
      endif()
      list(JOIN missing ", " missing)
      message(STATUS "CUDA toolkit in ${wheel} is not used: it lacks ${missing}")
    endforeach()
  endforeach()
endfunction()

if(CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA compiler: ${CMAKE_CUDA_COMPILER}")
elseif(NOT "$ENV{CUDACXX}" STREQUAL "")
  message(STATUS "CUDA compiler from CUDACXX: $ENV{CUDACXX}")
else()
  jaxgemm_find_wheel_toolkit(wheel)
  if(wheel)
    set(CUDAToolkit_ROOT ${CMAKE_CURRENT_BINARY_DIR}/cuda_toolkit)
    jaxgemm_link_wheel_toolkit(${wheel} ${CUDAToolkit_ROOT})
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_ROOT}/bin/nvcc)
    message(STATUS "CUDA compiler from wheels: ${wheel}/bin/nvcc")
  else()
    find_program(
      nvcc nvcc
      PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
      PATH_SUFFIXES bin NO_CACHE)
    if(NOT nvcc)
      message(
        FATAL_ERROR
          "No CUDA compiler found. Leave out --no-build-isolation to have one installed for the build, or install one: "
          "pip install nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* "
          "nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.* , or point CUDACXX at your nvcc.")
    endif()
    set(CMAKE_CUDA_COMPILER ${nvcc})
    message(STATUS "CUDA compiler from the system: ${nvcc}")
  endif()
endif()
