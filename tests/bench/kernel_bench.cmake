# Speed of the kernels against the machine's read bandwidth; a plain program, not a test.
add_executable(kernel_bench kernel_bench.cc read_bandwidth.cc read_streams.cc)
target_link_libraries(kernel_bench PRIVATE brigade_kernels brigade_simd)
