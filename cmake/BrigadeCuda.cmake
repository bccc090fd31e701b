# CUDA: BRIGADE_HAVE_CUDA says whether brigade_cuda.so is built. The tree needs none of it otherwise.
set(BRIGADE_CUDA AUTO CACHE STRING "The CUDA module: AUTO (when nvcc is found), ON or OFF")
set_property(CACHE BRIGADE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(BRIGADE_HAVE_CUDA OFF)
if(BRIGADE_CUDA STREQUAL "OFF" OR (BRIGADE_SANITIZE AND NOT BRIGADE_CUDA STREQUAL "ON"))
  return()
endif()

# check_language() looks in PATH and CUDACXX only.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(BRIGADE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(BRIGADE_NVCC)
    set(CMAKE_CUDA_COMPILER "${BRIGADE_NVCC}" CACHE FILEPATH "nvcc")
  endif()
endif()
# Before the language: CMake 3.25's own lists do not fit nvcc 13. Machine code for data-centre GPUs, and
# PTX for what comes after.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100-real;100-virtual" CACHE STRING "GPU architectures")
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  brigade_lacks(BRIGADE_CUDA "no nvcc was found; set CUDA_HOME or CUDACXX, or BRIGADE_CUDA=OFF"
                "No nvcc: brigade_cuda.so is not built")
  return()
endif()

# nvcc's own launcher: it keeps what ptxas says of registers and spills beside each object
# (tools/cuda_resources.py reads it), with ccache behind it where there is one.
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/tools/nvcc_launcher.py)
if(BRIGADE_CCACHE)
  list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
       CCACHE_NOHASHDIR=1 ${BRIGADE_CCACHE})
endif()
enable_language(CUDA)
# The default, static, would end up beside the shared one of CUDA::cudart.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
# CMake 3.25 does not know that nvcc speaks C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit REQUIRED)

# NCCL has no package file, and only its header is needed: the module opens the library itself. Without the
# header the module has no NCCL transport.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME PATH_SUFFIXES include)
set(BRIGADE_HAVE_CUDA ON)
message(STATUS "CUDA ${CUDAToolkit_VERSION}: brigade_cuda.so for ${CMAKE_CUDA_ARCHITECTURES}")
