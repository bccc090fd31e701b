# Sources of brigade_cuda.so, relative to this folder: for nvcc (the preset cuda) and for the emulation.
# A kernel file is added with its kernel, and its op to ops_table.cc.
set(BRIGADE_CUDA_KERNEL_SOURCES
    accept_drafts.cu
    argmax_rows.cu
    combine.cu
    embedding.cu
    fast_rows.cu
    gather_rows.cu
    group_terms.cu
    paged_attention.cu
    paged_attention_fast.cu
    panel_stream.cu
    panel_tiles.cu
    policy.cu
    rms_norm.cu
    rope_kv_write.cu
    router_top_k.cu
    row_stream.cu)
# Launchers of ops that share kernels.
set(BRIGADE_CUDA_LAUNCH_SOURCES attention_plan.cc expert_ffn.cc matmul.cc panel_product.cc)
set(BRIGADE_CUDA_HOST_SOURCES blas.cc cuda_status.cc device_cuda.cc fast_expert_ffn.cc fast_math.cc module.cc
    ops_table.cc probe.cc stream_cuda.cc stream_events.cc)
