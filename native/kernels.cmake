# The kernels, added to a target: one source, compiled once for each instruction set; which one runs
# is chosen at run time.
include_guard()
include(CheckCXXCompilerFlag)

# clang-cl takes Clang's own options behind this word.
if(CMAKE_CXX_COMPILER_FRONTEND_VARIANT STREQUAL "MSVC")
  set(headloom_option_word "/clang:")
endif()
function(headloom_options target)
  list(TRANSFORM ARGN PREPEND "${headloom_option_word}")
  target_compile_options(${target} PRIVATE ${ARGN})
endfunction()

# Fused multiply-adds are wanted wherever the processor has them; no other liberty is taken with
# the arithmetic: NaN and infinity mean something here.
function(headloom_instruction_set target name)
  set(here ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  file(GLOB sources CONFIGURE_DEPENDS ${here}/*_kernels.cpp)
  list(REMOVE_ITEM sources ${here}/neighbours_kernels.cpp)
  add_library(kernels_${name} OBJECT ${here}/kernels.cpp ${sources})
  # Over neighbours nothing is multiplied in pairs of bfloat16: what AVX-512 has serves wider sets,
  # and a sixth of the time to compile is saved.
  if(name MATCHES "^(avx512_bf16|amx)$")
    set(neighbours avx512)
  else()
    set(neighbours ${name})
    target_sources(kernels_${name} PRIVATE ${here}/neighbours_kernels.cpp)
  endif()
  target_compile_definitions(kernels_${name} PRIVATE
    HEADLOOM_INSTRUCTION_SET=${name} HEADLOOM_NEIGHBOURS=${neighbours})
  headloom_options(kernels_${name} -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math ${ARGN})
  if(NOT WIN32)
    target_compile_options(kernels_${name} PRIVATE -fvisibility=hidden)
  endif()
  set_target_properties(kernels_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:kernels_${name}>)
endfunction()

# An instruction set that the compiler does not know is left out; the next narrower one serves.
function(headloom_instruction_set_if_known target name definition)
  list(TRANSFORM ARGN PREPEND "${headloom_option_word}" OUTPUT_VARIABLE flags)
  string(REPLACE ";" " " flags "${flags}")
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_compiler_flag("${flags}" ${definition})
  if(${definition})
    headloom_instruction_set(${target} ${name} ${ARGN})
    target_compile_definitions(${target} PRIVATE ${definition})
  endif()
endfunction()

function(headloom_kernels target)
  set(here ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  file(GLOB sources CONFIGURE_DEPENDS ${here}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "(kernels|module)\\.cpp$")
  target_sources(${target} PRIVATE ${sources})
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  headloom_options(${target} -O3)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
    # Processors without AVX2 are from before 2013: half the time to compile, for what they run.
    headloom_instruction_set(${target} baseline -O2)
    set(avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -mprefer-vector-width=512)
    headloom_instruction_set_if_known(${target} avx2 HEADLOOM_HAS_AVX2 -mavx2 -mfma)
    headloom_instruction_set_if_known(${target} avx512 HEADLOOM_HAS_AVX512 ${avx512})
    headloom_instruction_set_if_known(
      ${target} avx512_bf16 HEADLOOM_HAS_AVX512_BF16 ${avx512} -mavx512bf16)
    headloom_instruction_set_if_known(
      ${target} amx HEADLOOM_HAS_AMX ${avx512} -mavx512bf16 -mamx-tile -mamx-bf16)
  else()
    headloom_instruction_set(${target} baseline)
  endif()
endfunction()
