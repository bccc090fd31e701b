# Speed of the kernels against the machine's read bandwidth; a plain program, not a test.
add_executable(kernel_bench kernel_bench.cc read_bandwidth.cc read_streams.cc)
target_link_libraries(kernel_bench PRIVATE brigade_kernels hwy::hwy)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(kernel_bench PRIVATE HWY_BASELINE_TARGETS=HWY_AVX2
    "HWY_DISABLED_TARGETS=(HWY_SCALAR|HWY_SSSE3|HWY_SSE4)")
endif()
