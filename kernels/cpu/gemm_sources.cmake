# Matrix products and expert layers; paths from kernels/.
set(BRIGADE_GEMM_SOURCES
  ops/packed_matrix.cc ops/path_counters.cc ops/matmul.cc ops/expert_ffn.cc
  cpu/gemm_tiles.cc cpu/gemm_tiles_f32.cc cpu/gemm_tiles_bf16.cc cpu/gemm_tiles_f16.cc
  cpu/panel_walk.cc cpu/matmul.cc cpu/swiglu.cc cpu/expert_ffn.cc)
set(BRIGADE_GEMM_REFERENCE_SOURCES reference/canonical_matmul.cc reference/expert_ffn.cc)
