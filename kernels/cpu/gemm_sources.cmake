# Matrix products and expert layers; paths from kernels/.
set(BRIGADE_GEMM_SOURCES)
set(BRIGADE_GEMM_REFERENCE_SOURCES)
