# Sources of brigade_cuda.so, relative to this folder: for nvcc (the preset cuda) and for the emulation.
# A kernel file is added with its kernel, and its op to ops_table.cc.
set(BRIGADE_CUDA_KERNEL_SOURCES)
set(BRIGADE_CUDA_HOST_SOURCES ops_table.cc)
