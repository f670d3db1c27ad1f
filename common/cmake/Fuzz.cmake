# add_fuzzer(idx SOURCES fuzz_idx.cpp ../idx.cpp ... [LIBRARIES fmt z] [CORPUS folder] [MAX_LEN bytes] [MALLOC_MB n])
#   a libFuzzer program under ASan and UBSan, and a test fuzz.idx (label fuzz) that runs it for 3 seconds, or for the
#   MANYRANKS_FUZZ_SECONDS of the environment.
# libFuzzer belongs to clang and the rest is built by g++, so this is a compile of its own: only for files without LibTorch.
# Where clang or its runtime is missing, the test is skipped and says so; MANYRANKS_REQUIRE=fuzz makes that a failure.
include_guard(GLOBAL)

find_program(MANYRANKS_CLANGXX NAMES clang++-14 clang++ clang++-15 clang++-16 clang++-17 clang++-18 clang++-19)
set(manyranks_fuzz_flags -std=c++20 -O1 -g1 -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined)

if(MANYRANKS_CLANGXX AND NOT DEFINED MANYRANKS_HAVE_FUZZER)
  file(WRITE "${CMAKE_BINARY_DIR}/probe_fuzzer.cpp"
    "#include <cstddef>\n#include <cstdint>\nextern \"C\" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }\n")
  execute_process(COMMAND "${MANYRANKS_CLANGXX}" ${manyranks_fuzz_flags} "${CMAKE_BINARY_DIR}/probe_fuzzer.cpp" -o "${CMAKE_BINARY_DIR}/probe_fuzzer"
                  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(MANYRANKS_HAVE_FUZZER OFF)   # not cached: installing the runtime and configuring again is enough
  else()
    set(MANYRANKS_HAVE_FUZZER ON CACHE INTERNAL "clang++ links libFuzzer")
  endif()
endif()

function(add_fuzzer name)
  cmake_parse_arguments(PARSE_ARGV 1 t "" "CORPUS;MAX_LEN;MALLOC_MB" "SOURCES;LIBRARIES")
  if(NOT MANYRANKS_HAVE_FUZZER)
    add_test(NAME "fuzz.${name}" COMMAND sh -c
      "echo 'skipped (fuzz): no clang++ with libFuzzer here; apt-get install clang libclang-rt-dev'; case \",$MANYRANKS_REQUIRE,\" in *,fuzz,*) exit 1;; esac; exit 77")
    manyranks_test_properties("fuzz.${name}" LABELS fuzz)
    return()
  endif()
  if(NOT t_MAX_LEN)
    set(t_MAX_LEN 4096)
  endif()
  if(NOT t_MALLOC_MB)
    set(t_MALLOC_MB 64)
  endif()
  set(program "${CMAKE_CURRENT_BINARY_DIR}/${name}_fuzzer")
  set(found "${program}.found")   # inputs that reach new code, kept between runs
  list(TRANSFORM t_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" REGEX "^[^/]")
  list(TRANSFORM t_LIBRARIES PREPEND "-l")
  set(folders "${CMAKE_SOURCE_DIR}/common/launch")
  foreach(source IN LISTS t_SOURCES)
    get_filename_component(folder "${source}" DIRECTORY)
    list(APPEND folders "${folder}")
  endforeach()
  list(REMOVE_DUPLICATES folders)
  list(TRANSFORM folders APPEND "/*.hpp")
  file(GLOB headers CONFIGURE_DEPENDS ${folders})
  add_custom_command(OUTPUT "${program}"
    COMMAND "${MANYRANKS_CLANGXX}" ${manyranks_fuzz_flags} "-I${CMAKE_SOURCE_DIR}/common" ${t_SOURCES} -o "${program}" ${t_LIBRARIES}
    COMMAND ${CMAKE_COMMAND} -E make_directory "${found}"
    DEPENDS ${t_SOURCES} ${headers} VERBATIM COMMENT "Building fuzzer ${name} with clang")
  add_custom_target("fuzz_${name}" ALL DEPENDS "${program}")
  # -malloc_limit_mb: a header must not talk us into an allocation that MAX_LEN bytes cannot justify.
  add_test(NAME "fuzz.${name}" COMMAND sh -c "exec \"$0\" -max_total_time=\"\${MANYRANKS_FUZZ_SECONDS:-3}\" \"$@\"" "${program}" -max_len=${t_MAX_LEN} -timeout=20
           -malloc_limit_mb=${t_MALLOC_MB} -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 "${found}" ${t_CORPUS})
  manyranks_test_properties("fuzz.${name}" LABELS fuzz TIMEOUT 900)
endfunction()
