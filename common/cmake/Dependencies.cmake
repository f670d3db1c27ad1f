# Finds what we build on, once, and gives each thing one target:
#   manyranks::flags  warnings, C++20, sanitizers      manyranks::cuda   CUDA runtime (empty without a toolkit)
#   manyranks::torch  LibTorch                         manyranks::nccl   NCCL, the one that LibTorch was built with
#   manyranks::mpi    MPI (C bindings)                 manyranks::gloo   Gloo for our module (exists only if found)
# MANYRANKS_HAVE_CUDA and MANYRANKS_HAVE_GLOO say what is there.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)   # we have none; where it can (GCC 14), CMake would look into each file, and leave all out of the batches
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # A precompiled header changes its time stamp, not its meaning: tell ccache so.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

# --- where LibTorch is --------------------------------------------------------------------------------------------
set(MANYRANKS_TORCH_VERSIONS 2.14.0 2.14.1)
if(DEFINED ENV{MANYRANKS_LIBTORCH} AND NOT MANYRANKS_LIBTORCH)
  set(MANYRANKS_LIBTORCH "$ENV{MANYRANKS_LIBTORCH}")
endif()
if(NOT MANYRANKS_LIBTORCH)
  file(GLOB MANYRANKS_LIBTORCH "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
endif()
set(MANYRANKS_LIBTORCH "${MANYRANKS_LIBTORCH}" CACHE PATH "Folder of LibTorch, with include/ and lib/")
if(NOT EXISTS "${MANYRANKS_LIBTORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch found. Run ./scripts/setup.sh, or set MANYRANKS_LIBTORCH to a folder with lib/libtorch_cpu.so.")
endif()
set(version_header "${MANYRANKS_LIBTORCH}/include/torch/headeronly/version.h")
set(MANYRANKS_TORCH_VERSION "unknown")
if(EXISTS "${version_header}")
  set(parts "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${version_header}" line REGEX "^#define TORCH_VERSION_${part} ")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND parts ${number})
  endforeach()
  list(JOIN parts "." MANYRANKS_TORCH_VERSION)
endif()
if(NOT MANYRANKS_TORCH_VERSION IN_LIST MANYRANKS_TORCH_VERSIONS)
  message(FATAL_ERROR "LibTorch in ${MANYRANKS_LIBTORCH} is '${MANYRANKS_TORCH_VERSION}'; manyranks builds against: ${MANYRANKS_TORCH_VERSIONS}.")
endif()
get_filename_component(site_packages "${MANYRANKS_LIBTORCH}" DIRECTORY)
file(GLOB nvidia_libs "${site_packages}/nvidia/*/lib")

# The CPU-only set-up installs the same wheel without the CUDA packages that libtorch_cuda.so needs: NCCL tells them apart.
find_path(NCCL_INCLUDE nccl.h HINTS "${site_packages}/nvidia/nccl/include" "${MANYRANKS_LIBTORCH}/include" NO_DEFAULT_PATH)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 HINTS "${site_packages}/nvidia/nccl/lib" "${MANYRANKS_LIBTORCH}/lib" NO_DEFAULT_PATH)
set(torch_has_cuda OFF)
if(EXISTS "${MANYRANKS_LIBTORCH}/lib/libtorch_cuda.so" AND NCCL_INCLUDE AND NCCL_LIBRARY)
  set(torch_has_cuda ON)
endif()
if(MANYRANKS_CUDA STREQUAL "ON" AND NOT torch_has_cuda)
  message(FATAL_ERROR "MANYRANKS_CUDA=ON, but LibTorch in ${MANYRANKS_LIBTORCH} is CPU-only. Run ./scripts/setup.sh --cuda, or use the cpu preset.")
endif()

# --- CUDA ---------------------------------------------------------------------------------------------------------
set(MANYRANKS_HAVE_CUDA OFF)
add_library(manyranks_cuda INTERFACE)
add_library(manyranks::cuda ALIAS manyranks_cuda)
if(torch_has_cuda AND NOT MANYRANKS_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(MANYRANKS_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(MANYRANKS_NVCC)
      set(CMAKE_CUDA_COMPILER "${MANYRANKS_NVCC}")
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75 80 90 100 CACHE STRING "GPU architectures")   # Turing, Ampere, Hopper, Blackwell
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    find_package(CUDAToolkit REQUIRED)
    target_link_libraries(manyranks_cuda INTERFACE CUDA::cudart)
    target_compile_definitions(manyranks_cuda INTERFACE MANYRANKS_HAVE_CUDA=1)
    set(MANYRANKS_HAVE_CUDA ON)
  elseif(MANYRANKS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MANYRANKS_CUDA=ON, but no CUDA compiler was found. Put nvcc on PATH, set CUDA_HOME, or use the cpu preset.")
  endif()
endif()

# --- our own compile flags ----------------------------------------------------------------------------------------
add_library(manyranks_flags INTERFACE)
add_library(manyranks::flags ALIAS manyranks_flags)
# A compiler that we did not try may warn of what is none (GCC 14: array bounds, inside LibTorch's headers): that stops developers, not users.
option(MANYRANKS_WERROR "A warning stops the build (preset dev, and continuous integration)" OFF)
target_compile_options(manyranks_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
if(MANYRANKS_WERROR)
  target_compile_options(manyranks_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(MANYRANKS_SANITIZE STREQUAL "address")
  target_compile_options(manyranks_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
  target_link_options(manyranks_flags INTERFACE -fsanitize=address,undefined -rdynamic)   # so that our dlclose() is everybody's
elseif(MANYRANKS_SANITIZE STREQUAL "thread")
  # GCC warns that TSan does not model atomic_thread_fence: we pair every fence with atomics that it does see.
  target_compile_options(manyranks_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer -g1 -Wno-tsan)
  target_link_options(manyranks_flags INTERFACE -fsanitize=thread)
endif()
if(MANYRANKS_SANITIZE)
  # GCC 12 takes parts of <regex> for uninitialised when it instruments them.
  target_compile_options(manyranks_flags INTERFACE -Wno-maybe-uninitialized)
  target_compile_definitions(manyranks_flags INTERFACE MANYRANKS_SANITIZE=1)
endif()

# --- LibTorch -----------------------------------------------------------------------------------------------------
# find_package(Torch) of the wheel fails without a CUDA toolkit and overrides CUDA architectures with one, so the
# few libraries that we need are imported here.
add_library(manyranks_torch INTERFACE)
add_library(manyranks::torch ALIAS manyranks_torch)
target_include_directories(manyranks_torch SYSTEM INTERFACE
  "${MANYRANKS_LIBTORCH}/include" "${MANYRANKS_LIBTORCH}/include/torch/csrc/api/include")
target_compile_definitions(manyranks_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
set(torch_libraries torch_cpu c10)
if(MANYRANKS_HAVE_CUDA)
  list(APPEND torch_libraries torch_cuda c10_cuda)
endif()
foreach(name IN LISTS torch_libraries)
  add_library(${name} SHARED IMPORTED)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${MANYRANKS_LIBTORCH}/lib/lib${name}.so")
endforeach()
# libtorch_cuda registers its operators when loaded: keep it although no symbol is referenced.
target_link_libraries(manyranks_torch INTERFACE "$<$<BOOL:${MANYRANKS_HAVE_CUDA}>:-Wl,--no-as-needed>" ${torch_libraries})
target_link_libraries(manyranks_torch INTERFACE manyranks_cuda)
foreach(folder IN LISTS nvidia_libs)
  target_link_options(manyranks_torch INTERFACE "LINKER:-rpath-link,${folder}" "LINKER:-rpath,${folder}")
endforeach()

# --- MPI ----------------------------------------------------------------------------------------------------------
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS CXX)
add_library(manyranks_mpi INTERFACE)
add_library(manyranks::mpi ALIAS manyranks_mpi)
target_link_libraries(manyranks_mpi INTERFACE MPI::MPI_CXX)
target_compile_definitions(manyranks_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

# --- NCCL: the wheel's own; the toolkit's does not link with libtorch_cuda -------------------------------------------
add_library(manyranks_nccl INTERFACE)
add_library(manyranks::nccl ALIAS manyranks_nccl)
if(MANYRANKS_HAVE_CUDA)
  target_include_directories(manyranks_nccl SYSTEM BEFORE INTERFACE "${NCCL_INCLUDE}")
  target_link_libraries(manyranks_nccl INTERFACE "${NCCL_LIBRARY}" manyranks_cuda)
endif()

# --- Gloo: optional; used only inside our own module (its symbols clash with those in libtorch_cpu) --------------------
set(MANYRANKS_HAVE_GLOO OFF)
find_path(GLOO_INCLUDE gloo/context.h)
find_library(GLOO_LIBRARY gloo)
if(GLOO_INCLUDE AND GLOO_LIBRARY)
  add_library(manyranks_gloo_library INTERFACE)
  add_library(manyranks::gloo ALIAS manyranks_gloo_library)
  target_include_directories(manyranks_gloo_library SYSTEM INTERFACE "${GLOO_INCLUDE}")
  target_link_libraries(manyranks_gloo_library INTERFACE "${GLOO_LIBRARY}")
  set(MANYRANKS_HAVE_GLOO ON)
endif()

# --- small ones ---------------------------------------------------------------------------------------------------
set(MANYRANKS_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python")   # the scripts' interpreter
if(NOT EXISTS "${MANYRANKS_PYTHON}")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(MANYRANKS_PYTHON "${Python3_EXECUTABLE}")
endif()
find_package(Threads REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)

message(STATUS "manyranks: LibTorch ${MANYRANKS_TORCH_VERSION}, CUDA ${MANYRANKS_HAVE_CUDA}, Gloo ${MANYRANKS_HAVE_GLOO}, MPI ${MPI_CXX_VERSION}")
