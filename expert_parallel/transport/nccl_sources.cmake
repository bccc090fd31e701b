# What brigade_cuda.so has of this folder where there is NCCL; also for the emulation.
set(BRIGADE_NCCL_SOURCES nccl_address.cc nccl_entry.cc nccl_heads.cc nccl_links.cc nccl_pair.cc nccl_posting.cc
                         nccl_trailer.cc nccl_transport.cc)
