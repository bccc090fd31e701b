"""What NCCL can show on one GPU: a communicator of one rank that sends to itself, with the libraries named.

  python3 nccl_alone.py LIBCUDART LIBNCCL        exit code 0 and a sentence, or 1 and the call that failed
"""

import ctypes
import sys

BYTES = 1 << 20
TO_DEVICE, TO_HOST = 1, 2  # cudaMemcpyKind
UINT8 = 1  # ncclDataType_t


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def load(path, name_of_error):
    """Calls of the library that end the program when they fail."""
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    text = getattr(library, name_of_error)
    text.restype = ctypes.c_char_p

    def call(name, *arguments):
        code = getattr(library, name)(*arguments)
        if code != 0:
            sys.exit(f"{name}: {text(code).decode()}")
    return call


def main():
    cuda = load(sys.argv[1], "cudaGetErrorString")
    nccl = load(sys.argv[2], "ncclGetErrorString")
    version, identity, comm = ctypes.c_int(), UniqueId(), ctypes.c_void_p()
    there, back = ctypes.c_void_p(), ctypes.c_void_p()
    size = ctypes.c_size_t(BYTES)
    nccl("ncclGetVersion", ctypes.byref(version))
    for buffer in (there, back):
        cuda("cudaMalloc", ctypes.byref(buffer), size)
    sent = bytes(i * 7 % 251 for i in range(BYTES))
    cuda("cudaMemcpy", there, sent, size, TO_DEVICE)
    cuda("cudaMemset", back, 0, size)
    nccl("ncclGetUniqueId", ctypes.byref(identity))
    nccl("ncclCommInitRank", ctypes.byref(comm), 1, identity, 0)
    nccl("ncclGroupStart")
    nccl("ncclSend", there, size, UINT8, 0, comm, None)
    nccl("ncclRecv", back, size, UINT8, 0, comm, None)
    nccl("ncclGroupEnd")
    cuda("cudaDeviceSynchronize")
    received = ctypes.create_string_buffer(BYTES)
    cuda("cudaMemcpy", received, back, size, TO_HOST)
    if received.raw != sent:
        sys.exit("what NCCL received is not what it sent")
    nccl("ncclCommDestroy", comm)
    print(f"NCCL {version.value}: one rank sent {BYTES >> 20} MiB to itself")


if __name__ == "__main__":
    main()
