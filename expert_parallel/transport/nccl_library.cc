// NCCL's functions for brigade_cuda.so, which is not linked with libnccl.so.2: the library is
// opened at the first call, so that the module also opens on a machine without one, where
// everything but the data plane nccl works. Each function has NCCL's name and signature (nccl.h)
// and passes its arguments on; without the library it fails, and ncclGetErrorString() says what is
// missing. Any thread.
#include <dlfcn.h>
#include <nccl.h>

#include <string>

namespace {

constexpr char kLibrary[] = "libnccl.so.2";

struct Library {
  Library() : handle(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    if (handle == nullptr) missing = dlerror();
  }
  void* const handle;
  std::string missing;  // why it could not be opened
};

// Never closed.
Library& library() {
  static auto* const opened = new Library;
  return *opened;
}

template <typename Function>
Function* find(const char* name) {
  void* const handle = library().handle;
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

}  // namespace

#define BRIGADE_PASS_ON(name, parameters, arguments)                   \
  ncclResult_t name parameters {                                       \
    static auto* const function = find<decltype(name)>(#name);         \
    return function == nullptr ? ncclSystemError : function arguments; \
  }

extern "C" {

BRIGADE_PASS_ON(ncclGetVersion, (int* version), (version))
BRIGADE_PASS_ON(ncclGetUniqueId, (ncclUniqueId * id), (id))
BRIGADE_PASS_ON(ncclCommInitRankConfig,
                (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config),
                (comm, ranks, id, rank, config))
BRIGADE_PASS_ON(ncclCommAbort, (ncclComm_t comm), (comm))
BRIGADE_PASS_ON(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error), (comm, error))
BRIGADE_PASS_ON(ncclGroupStart, (), ())
BRIGADE_PASS_ON(ncclGroupEnd, (), ())
BRIGADE_PASS_ON(ncclSend,
                (const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                 cudaStream_t stream),
                (from, count, type, peer, comm, stream))
BRIGADE_PASS_ON(ncclRecv,
                (void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                 cudaStream_t stream),
                (to, count, type, peer, comm, stream))

const char* ncclGetErrorString(ncclResult_t result) {
  static auto* const function = find<decltype(ncclGetErrorString)>("ncclGetErrorString");
  if (function != nullptr) return function(result);
  return library().missing.empty() ? "not a function of this NCCL" : library().missing.c_str();
}

const char* ncclGetLastError(ncclComm_t comm) {
  static auto* const function = find<decltype(ncclGetLastError)>("ncclGetLastError");
  return function == nullptr ? "" : function(comm);
}

}  // extern "C"
