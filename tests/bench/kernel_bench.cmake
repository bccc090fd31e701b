# Speed of the kernels against the machine's read bandwidth; a plain program, not a test.
add_library(brigade_read_bandwidth STATIC read_bandwidth.cc read_streams.cc)
target_link_libraries(brigade_read_bandwidth PUBLIC brigade_kernels PRIVATE brigade_simd)
add_executable(kernel_bench kernel_bench.cc)
target_link_libraries(kernel_bench PRIVATE brigade_read_bandwidth)
