# Tests of matrix products and experts; paths from tests/kernels.
add_library(brigade_gemm_test_support STATIC gemm_support.cc)
target_link_libraries(brigade_gemm_test_support PUBLIC brigade_reference GTest::gtest)

foreach(name matmul_test expert_ffn_test packed_matrix_test)
  brigade_test(${name} SOURCES ${name}.cc DEPS brigade_gemm_test_support LABELS kernels)
endforeach()
